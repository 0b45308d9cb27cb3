"""``hwbmpq targets show --model`` and ``compare``: what a network costs."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import hwbmpq
from hwbmpq.hardware import load_profile

Captured = pytest.CaptureFixture[str]
Run = Callable[..., str]

pytestmark = pytest.mark.usefixtures("own_folder")


def test_show_draws_bars_and_totals(run: Run) -> None:
    output = run("show", "mpic", "--model", "hwbmpq:resnet8", "--bits", "2,8", "--cost", "memory")
    (last,) = [line for line in output.splitlines() if line.startswith(" layer3.0.conv2")]
    assert "████" in last
    assert last.split()[1] == "9.00"
    (total,) = [line for line in output.splitlines() if line.startswith(" the network")]
    # Weights of 19.05 and 73.05 KiB; beside them 8 scales, 240 channels of 7 norms, 10 biases, 8 clipping points.
    beside = (8 * 4 + 240 * 16 + 7 * 8 + 10 * 4 + 8 * 8) / 1024
    assert total.split()[-2:] == [f"{19.047 + beside:.2f}", f"{73.047 + beside:.2f}"]


def test_show_says_when_it_does_not_fit(run: Run) -> None:
    output = run("show", "stm32f746", "--model", "hwbmpq:vgg16", "--cost", "flash", "--cost", "ram")
    assert "has to fit in flash (1.000 MiB): does not at W4A8, W8A8" in output
    assert "has to fit in sram (320.0 KiB): does at every width" in output


def test_show_hides_small_layers_of_large_networks(run: Run) -> None:
    arguments = ("show", "generic", "--model", "timm:densenet121", "--cost", "memory", "--bits", "4")
    assert "smaller (--all)" in run(*arguments)
    assert len(run(*arguments, "--all").splitlines()) > 121


def test_compare_shows_what_each_width_buys(run: Run) -> None:
    arguments = ("--model", "hwbmpq:resnet8", "--cost", "latency")
    output = run("compare", "mpic", "jetson_nano", *arguments, "--activation-bits", "same")
    lines = {line.split()[0]: line.split() for line in output.splitlines() if line.startswith(" W2")}
    assert lines["W2A2"][3] == "2.88x"
    assert lines["W2A16"][-1] == "1.00x"
    assert "jetson_nano: widths do not change latency" in output
    content = json.loads(run("compare", "mpic", "gap8", "--model", "hwbmpq:resnet8", "--json"))
    assert content["mpic"]["totals"]["latency"]["W2A8"] < content["mpic"]["totals"]["latency"]["W8A8"]
    assert content["gap8"]["totals"]["latency"]["W2A8"] == content["gap8"]["totals"]["latency"]["W8A8"]


def test_one_width_is_said_to_be_nothing_to_allocate(run: Run) -> None:
    output = run(
        "compare",
        "jetson_orin_nano",
        "coral_edge_tpu",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "latency",
    )
    assert " W16" not in output
    assert "jetson_orin_nano: one width to choose from, W8A8: nothing to allocate" in output
    shown = run("show", "jetson_orin_nano", "--model", "hwbmpq:resnet8", "--cost", "latency")
    (total,) = [line for line in shown.splitlines() if line.startswith(" all layers")]
    assert len(total.split()) == 3  # no total at W16, which only the ends have


def test_compare_says_what_its_numbers_are(run: Run) -> None:
    output = " ".join(
        run("compare", "nvidia_t4", "mpic", "--model", "hwbmpq:resnet8", "--cost", "latency").split()
    )
    assert "nvidia_t4: measured with a batch of 8, given for one input of it" in output
    assert "14 of 14 numbers are taken from neighbours" in output


def test_compare_leaves_out_a_device_that_lacks_the_widths(run: Run) -> None:
    output = run(
        "compare",
        "coral_edge_tpu",
        "mpic",
        "--model",
        "hwbmpq:resnet8",
        "--bits",
        "4",
        "--cost",
        "memory",
    )
    assert (
        "coral_edge_tpu: layer 'layer1.0.conv1' (conv2d): profile 'coral_edge_tpu' does not run"
        in " ".join(output.split())
    )
    assert "40.98 KiB" in output  # weights of 37.05 KiB, and 3.94 beside them


def test_products_of_activations_are_said_to_be_uncosted(run: Run) -> None:
    output = run("show", "mpic", "--model", "timm:vit_tiny_patch16_224", "--cost", "latency")
    shown = " ".join(output.split())
    assert re.search(
        r"latency is a lower bound: \d+ parts of the network \(14 % of its MACs\) have no figure", shown
    )


def test_promoted_widths_are_shown(run: Run) -> None:
    output = run("show", "mpic", "--model", "hwbmpq:resnet8", "--bits", "3,4", "--cost", "memory")
    assert "W3A8 runs as W4A8 (6 of 8 layers)" in output
    assert "widths do not change" not in output


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_numbers_and_device_names_are_never_cut(
    columns: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = run("show", "gap9_ne16", "--model", "timm:resnet18", "--cost", "energy").partition("energy in")[2]
    numbers = [word for line in table.splitlines() if line.startswith(" layer1") for word in line.split()[1:]]
    assert numbers
    assert not any("…" in number for number in numbers)
    devices = ("mpic", "gap9_ne16", "jetson_nano", "stm32f746", "raspberry_pi_5")
    output = run("compare", *devices, "--model", "hwbmpq:resnet8", "--cost", "memory")
    assert "…" not in output
    assert all(device in output for device in devices)


def test_activation_bits_reach_the_costs(run: Run) -> None:
    arguments = ("compare", "mpic", "--model", "hwbmpq:resnet8", "--cost", "latency", "--json")
    same = json.loads(run(*arguments, "--activation-bits", "same"))["mpic"]["totals"]["latency"]
    wide = json.loads(run(*arguments, "--activation-bits", "8"))["mpic"]["totals"]["latency"]
    assert same["W2A2"] < wide["W2A8"] < wide["W8A8"] == same["W8A8"]
    shown = run(
        "show",
        "mpic",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "latency",
        "--activation-bits",
        "widest",
    )
    assert "W2A8" in shown


def test_compare_repeats_the_caveats_of_the_devices(run: Run) -> None:
    output = " ".join(
        run("compare", "jetson_nano", "imx500", "--model", "hwbmpq:resnet8", "--bits", "8").split()
    )
    for name in ("jetson_nano", "imx500"):
        for caveat in load_profile(name).caveats:
            assert f"{name}: {caveat}" in output
    assert "imx500: rests on memory.sensor.size_bytes (uncertain)" in output


def test_the_worst_step_is_named(run: Run) -> None:
    output = run("show", "gap8", "--model", "hwbmpq:resnet8", "--cost", "ram", "--bits", "2,8")
    (line,) = [line for line in output.splitlines() if line.startswith(" W2A8")]
    assert line.split() == ["W2A8", "96.00", "KiB", "add"]


def test_default_budgets_are_held_against_each_width(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\n"
        "budgets: {memory: 12x, latency: 20 ms, bops: 30%}\n"
    )
    output = run(
        "show",
        "own.yaml",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "memory",
        "--cost",
        "latency",
        "--cost",
        "bops",
    )
    # 74,800 weights and 3,936 bytes of norms and biases: 12x is 24.67 KiB, between 22.98 at 2 bits and 40.98 at 4
    assert re.search(r"default budget 12x \(24.\d+ KiB\): not met at W4A4, W8A8", output)
    assert "default budget 20 ms (20.00 ms): not met at W8A8" in output
    assert re.search(r"default budget 30% \(.* Mbit-op\): not met at W8A8", output)


def test_memory_that_is_shared_is_said_to_be(run: Run) -> None:
    output = run("show", "imx500", "--model", "hwbmpq:resnet8", "--cost", "memory")
    assert "does at every width, by itself: weights and activations share it" in " ".join(output.split())


def test_a_column_without_numbers_is_explained(run: Run) -> None:
    output = run("compare", "mpic", "x86_onnxruntime", "imx500", "--model", "hwbmpq:resnet8")
    assert "x86_onnxruntime: no energy: it has no model for it" in output
    shown = " ".join(run("show", "imx500", "--model", "hwbmpq:resnet8").split())
    assert "(it has rows for int8×int8: choose widths with --bits)" in shown


def test_no_note_is_given_twice(run: Run) -> None:
    content = json.loads(
        run("show", "jetson_nano", "--model", "hwbmpq:resnet8", "--cost", "energy", "--json")
    )
    notes = content["costs"]["notes"]["energy"]
    assert len(notes) == len(set(notes)) > 2


def test_compare_names_the_pairs_that_compress_takes_by_default(run: Run) -> None:
    """mpic runs W2A2 and W2A8; without a budget on activations, compress takes A8."""
    content = json.loads(
        run("compare", "mpic", "gap9_ne16", "--model", "hwbmpq:resnet8", "--cost", "latency", "--json")
    )
    model = hwbmpq.models.load_model("hwbmpq:resnet8")
    graph = hwbmpq.describe(model.network, model.example_input())
    space = hwbmpq.search.build_search_space(graph, hwbmpq.load_profile("mpic"), bits=(2, 4, 8))
    labels = [space.costs.label(width) for width in space.costs.widths]
    assert labels == ["W2A8", "W4A8", "W8A8"]
    assert [name for name in content["mpic"]["totals"]["latency"] if "A" in name] == labels
    assert content["mpic"]["totals"]["latency"]["W2A8"] == pytest.approx(space.costs.total("latency", 2))


def test_pairs_that_differ_between_devices_have_rows_of_their_own(run: Run) -> None:
    text = run(
        "compare",
        "mpic",
        "gap9_ne16",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "memory",
        "--activation-bits",
        "same",
    )
    rows = [line.split()[0] for line in text.splitlines() if line.strip().startswith("W")]
    assert {"W2A2", "W2A8", "W4A4", "W4A8"} <= set(rows)


def test_no_width_is_named_without_its_activations(run: Run) -> None:
    for text in (
        run("compare", "mpic", "generic", "--model", "hwbmpq:resnet8"),
        run("show", "mpic", "--model", "hwbmpq:resnet8", "--brief"),
    ):
        assert not re.search(r"\bW\d+\b", text)
