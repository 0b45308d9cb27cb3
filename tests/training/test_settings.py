"""Settings: what is refused and how it says so, what wins, and the way through YAML."""

from pathlib import Path
from typing import Any

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.training.settings import RunSettings, read_settings, resolve_settings, settings_yaml

BASE = {"model": "hwbmpq:resnet8", "target": "mpic"}


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("epoch", "epochs"),
        ("batchsize", "batch_size"),
        ("activation-bits", "activation_bits"),
    ],
)
def test_an_unknown_setting_gets_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(HwbmpqError, match=f"no setting '{name}': did you mean {suggestion}") as error:
        resolve_settings({**BASE, name: 3})
    assert "lr_decay_at" in error.value.hint


def test_nothing_close_is_no_suggestion() -> None:
    with pytest.raises(HwbmpqError, match=r"no setting 'zzzz'$"):
        resolve_settings({**BASE, "zzzz": 3})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": "ten"}, "epochs: "),
        ({"epochs": [3]}, "epochs: "),
        ({"epochs": 2.5}, "epochs: "),
        ({"epochs": -1}, "epochs: "),
        ({"lr": "fast"}, r"lr: .*\(given: 'fast'\)"),
        ({"lr": 0}, "lr: "),
        ({"lr": float("nan")}, "lr: "),
        ({"batch_size": 0}, "batch_size: "),
        ({"bits": 4}, "bits: "),
        ({"bits": ["two"]}, "bits: "),
        ({"optimizer": "lion"}, "optimizer: .*sgd.*adam"),
        ({"budgets": ["memory"]}, "budgets: "),
        ({"lr_decay_at": [0.7, 0.4]}, "lr_decay_at: give ascending shares"),
        ({"lr_decay_at": [80, 140]}, "lr_decay_at: give ascending shares"),
        ({"activation_bits": "wide"}, "activation_bits: "),
        ({"nesterov": True, "momentum": 0}, "nesterov needs a momentum"),
        ({"seed": -1}, "seed: "),
        ({"data": 5}, "data: "),
        ({"clip_norm": 0}, "clip_norm: "),
    ],
    ids=str,
)
def test_wrong_values_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HwbmpqError, match=message):
        resolve_settings({**BASE, **given})


def test_every_wrong_value_is_named_at_once() -> None:
    with pytest.raises(HwbmpqError) as error:
        resolve_settings({**BASE, "lr": "fast", "batch_size": 0})
    lines = str(error.value).splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["batch_size", "lr"]


@pytest.mark.parametrize("missing", ["model", "target"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(HwbmpqError, match=f"^{missing}: is missing$"):
        resolve_settings({name: value for name, value in BASE.items() if name != missing})


@pytest.mark.parametrize("bits", [None, (2, 4), ()])
def test_hpq_needs_one_single_width(bits: tuple[int, ...] | None) -> None:
    with pytest.raises(HwbmpqError, match="hpq has one width for all layers: give --bits with one number"):
        resolve_settings({**BASE, "method": "hpq", "bits": bits})


def test_hpq_with_one_width_is_fine() -> None:
    assert resolve_settings({**BASE, "method": "hpq", "bits": [4]}).bits == (4,)


FULL: dict[str, Any] = {
    **BASE,
    "input": "3x8x8",
    "budgets": {"memory": "12x", "latency": 8.5},
    "bits": [2, 4, 8],
    "activation_bits": 8,
    "data": "folder:/tmp/ä ö",
    "epochs": 7,
    "warmup_epochs": 3,
    "interval_epochs": 2,
    "lr": 1e-05,
    "lr_decay_at": [0.1, 1 / 3],
    "clip_norm": 1.0,
    "augment": "none",
    "optimizer": "adamw",
    "seed": 2**40,
}


@pytest.mark.parametrize(
    "given",
    [
        FULL,
        BASE,
        {**BASE, "data": "cifar10", "epochs": 12},
        {**BASE, "epochs": 9, "decide_after": [2, 5]},
        {**BASE, "epochs": 0},
        {**BASE, "pretrained": True},
        {**BASE, "method": "hpq", "bits": [2]},
    ],
    ids=["full", "least", "cifar", "aperiodic", "no training", "pretrained", "hpq"],
)
def test_yaml_gives_the_same_settings_back(given: dict[str, Any], tmp_path: Path) -> None:
    settings = resolve_settings(given)
    path = tmp_path / "config.yaml"
    path.write_text(settings_yaml(settings, "# hwbmpq: 1.0\n"), encoding="utf-8")
    assert resolve_settings(read_settings(path)) == settings


def test_what_is_given_wins_over_the_recipe() -> None:
    found = resolve_settings({**BASE, "data": "cifar10", "lr": 0.3, "epochs": 50, "lr_schedule": "cosine"})
    assert (found.lr, found.epochs, found.lr_schedule, found.batch_size) == (0.3, 50, "cosine", 128)


def test_flags_win_over_a_file_and_a_file_over_the_recipe(tmp_path: Path) -> None:
    """As the command line merges them: ``None`` is a flag that was not given."""
    path = tmp_path / "run.yaml"
    path.write_text("data: cifar10\nlr: 0.3\nbatch_size: 64\n")
    flags = {**BASE, "lr": 0.7, "batch_size": None, "seed": None}
    said = {name: value for name, value in flags.items() if value is not None}
    found = resolve_settings({**read_settings(path), **said})
    assert (found.lr, found.batch_size, found.lr_schedule, found.seed) == (0.7, 64, "step", 0)


def test_none_counts_as_not_given() -> None:
    assert resolve_settings({**BASE, "data": "cifar10", "lr": None}).lr == 0.1


def test_epochs_for_decisions_take_the_place_of_the_recipes_intervals() -> None:
    found = resolve_settings({**BASE, "epochs": 10, "decide_after": [2, 5]})
    assert (found.decide_after, found.warmup_epochs, found.interval_epochs) == ((2, 5), None, None)


ALIASES = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]
).encode()
MERGES = "\n".join(
    ["m0: &m0 {a: 1}", *(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, 10))]
).encode()


@pytest.mark.parametrize("text", ["lr: 1e-3\n", "lr: 0.001\n", "lr: '0.001'\n"])
def test_numbers_as_people_write_them_in_yaml(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert resolve_settings({**BASE, **read_settings(tmp_path / "run.yaml")}).lr == 0.001


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "run.yaml:1:1: the file is empty: a file of settings is a mapping"),
        (b"- a\n- b\n", "run.yaml:1:1: a file of settings is a mapping of keys to values"),
        (b"epochs: [3\n", "run.yaml:2:1: not YAML: did not find expected ',' or ']'"),
        (b"epochs: 3\nlr: {a: 1\n", "run.yaml:3:1: not YAML"),
        (b"\xff\xfe\x00", "run.yaml:1:1: not UTF-8 text"),
        (b"!!python/object:os.system {}\n", "plain values only"),
        (ALIASES, "values or 1 MiB of text \\(aliases count in full\\): that is not a file of settings"),
        (MERGES, "aliases count in full"),
        (b"epochs: " + b"[" * 100_000, "nested more than 32 deep"),
        (b"#" * (1 << 20) + b"#", "has 1048577 bytes"),
    ],
)
def test_files_that_hold_no_settings(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(HwbmpqError, match=message):
        read_settings(tmp_path / "run.yaml")


@pytest.mark.parametrize("name", ["budgets", "lr", "bits", "model", "x" * 300_000])
def test_a_message_does_not_repeat_a_long_value(name: str) -> None:
    with pytest.raises(HwbmpqError) as raised:
        resolve_settings({**BASE, name: ["x" * 300_000] * 10})
    assert len(str(raised.value)) < 3000


def test_many_problems_are_counted() -> None:
    budgets = {f"cost{number}": [] for number in range(5000)}
    with pytest.raises(HwbmpqError, match="budgets: ") as raised:
        resolve_settings({**BASE, "budgets": budgets})
    assert len(str(raised.value)) < 5000


@pytest.mark.parametrize(
    "given",
    [
        {"input": "3x60000x60000"},
        {"epochs": 10**9},
        {"epochs": 10**30},
        {"seed": 10**30},
        {"workers": 10**5},
        {"num_classes": 2**31},
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(HwbmpqError, match=f"{next(iter(given))}: "):
        resolve_settings({**BASE, **given})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match=r"run.yaml: cannot be read"):
        read_settings(tmp_path / "run.yaml")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RunSettings(**BASE, epochs=1, lr=1).epochs = 5


def test_a_name_that_begins_like_a_setting_is_recognised() -> None:
    with pytest.raises(HwbmpqError, match=r"no setting 'warmup': did you mean warmup_epochs\?"):
        resolve_settings({"model": "m", "target": "mpic", "warmup": 3})


@pytest.mark.parametrize("given", [{"epochs": True}, {"lr": float("inf")}, {"lr": float("nan")}])
def test_numbers_that_are_none_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(HwbmpqError, match=next(iter(given))):
        resolve_settings({"model": "m", "target": "mpic", **given})


def test_settings_of_a_run_of_0_1_0_keep_meaning_what_they_meant(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "# written by: hwbmpq 0.1.0, Python 3.11.7\nmodel: hwbmpq:resnet8\ntarget: mpic\nepochs: 3\n"
    )
    assert resolve_settings(read_settings(file)).validation == 0
    file.write_text("model: hwbmpq:resnet8\ntarget: mpic\nepochs: 3\n")  # by a person
    assert resolve_settings(read_settings(file)).validation is None


@pytest.mark.parametrize("amount", [None, 0.0, 0.2, 30.0])
def test_validation_goes_through_the_file_of_a_run(amount: float | None, tmp_path: Path) -> None:
    settings = resolve_settings({**BASE, "validation": amount})
    (tmp_path / "config.yaml").write_text(settings_yaml(settings, "# written by: hwbmpq 9\n"))
    assert resolve_settings(read_settings(tmp_path / "config.yaml")).validation == amount


def test_a_recipe_of_the_paper_holds_nothing_out() -> None:
    assert resolve_settings(BASE, recipe="bmpq-cifar10-vgg16").validation == 0
    assert resolve_settings({**BASE, "data": "cifar10"}).validation is None
