"""``hwbmpq compress`` and ``hwbmpq evaluate`` as they are typed."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import hwbmpq
from hwbmpq.cli.main import main
from hwbmpq.cli.options.network import load_network
from hwbmpq.cli.progress import TrainingProgress
from hwbmpq.cli.render.tables import in_bytes
from hwbmpq.costs.stored import WIDER
from hwbmpq.units import amount

SMALL = ["--model", "hwbmpq:resnet8", "--target", "mpic", "--data", "fake", "--train-images", "71"]
"""64 images to train on once 7 are held out for validation."""
SHORT = [*SMALL, "--test-images", "32", "--batch-size", "16", "--epochs", "3"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Type a command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def typed(*words: str) -> tuple[int, str, str]:
        try:
            code = main(list(words))
        except SystemExit as error:
            code = int(error.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


def weights_of(folder: str) -> dict[str, torch.Tensor]:
    state = hwbmpq.training.RunDirectory(folder).load_checkpoint()[0]["model"]
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def history_of(folder: str) -> list[str]:
    """Its lines, without the time that the solver took."""
    return re.sub(r'"seconds": [^}]*', "", Path(folder, "history.jsonl").read_text()).splitlines()


def assert_same_weights(one: str, other: str) -> None:
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_leaves_its_folder_and_evaluates_to_what_it_reported(run: Run) -> None:
    code, out, err = run("compress", *SHORT, "--budget", "memory=24KiB", "--run-dir", "one")
    assert code == 0, err
    assert "test accuracy" in out
    assert "warm-up of 1 epoch; widths are decided after epoch 1, 2" in err
    assert "epoch 3/3" in err
    assert sorted(path.name for path in Path("one").iterdir()) == [
        "allocation.json",
        "best.pt",
        "checkpoint.previous.pt",
        "checkpoint.pt",
        "config.yaml",
        "facts.json",
        "history.jsonl",
        "model.safetensors",
        "report.html",
    ]
    result = json.loads(Path("one/allocation.json").read_text())
    assert result["allocation"]["costs"]["memory"] <= result["allocation"]["budgets"]["memory"] == 24 * 8192
    history = [json.loads(line) for line in Path("one/history.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert [record["decision"] is not None for record in history] == [True, True, False]
    code, out, err = run("evaluate", "one", "--json")
    assert json.loads(out)["test_accuracy"] == result["test_accuracy"]
    assert not any("test_accuracy" in record or "test_loss" in record for record in history)
    best = max(record["validation_accuracy"] for record in history[1:])  # the first is the warm-up
    assert result["best"]["validation_accuracy"] == best
    assert run("evaluate", "one", "--best")[0] == 0


def test_the_configuration_of_a_run_repeats_it(run: Run) -> None:
    run("compress", *SHORT, "--seed", "3", "--lr", "0.03", "--run-dir", "one")
    config = yaml.safe_load(Path("one/config.yaml").read_text())
    assert (config["seed"], config["lr"], config["warmup_epochs"], config["epochs"]) == (3, 0.03, 1, 3)
    assert run("compress", "--config", "one/config.yaml", "--run-dir", "two")[0] == 0
    assert_same_weights("one", "two")
    assert run("compress", "--config", "one/config.yaml", "--seed", "4", "--run-dir", "three")[0] == 0
    assert yaml.safe_load(Path("three/config.yaml").read_text())["seed"] == 4  # flags win


def test_json_is_all_that_stdout_gets(run: Run) -> None:
    code, out, _ = run("compress", *SHORT, "--json", "--run-dir", "one")
    result = json.loads(out)
    assert code == 0
    assert result["run"] == "one"
    assert result["allocation"]["optimal"]
    assert len(result["layers"]) == 8


def test_quiet_says_only_the_result(run: Run) -> None:
    _, out, err = run("compress", *SHORT, "-q", "--run-dir", "one")
    assert err == ""
    assert out.splitlines()[0].startswith("test accuracy ")
    assert out.splitlines()[-1] == "run: one"


def test_verbose_says_why_layers_moved(run: Run) -> None:
    _, _, err = run("compress", *SHORT, "-v", "--run-dir", "one")
    assert "% of the sensitivity for 50.0% of the weights" in err


def test_an_existing_run_is_refused_or_overwritten(run: Run) -> None:
    run("compress", *SHORT, "--run-dir", "one")
    code, _, err = run("compress", *SHORT, "--run-dir", "one")
    assert code == 2
    assert "one holds a run already" in err
    assert "--resume one" in err
    assert "--overwrite" in err
    assert run("compress", *SHORT, "--overwrite", "--run-dir", "one")[0] == 0


def test_runs_without_a_name_get_one_that_is_free(run: Run) -> None:
    assert "run: runs/resnet8-mpic\n" in run("compress", *SHORT, "-q")[1]
    assert "run: runs/resnet8-mpic-2\n" in run("compress", *SHORT, "-q")[1]


def test_infeasible_budgets_are_found_before_training(run: Run) -> None:
    code, _, err = run("compress", *SHORT, "--budget", "memory=5KiB", "--run-dir", "one")
    assert code == 2
    assert "the budgets cannot be met" in err
    assert "--budget memory=22.99KiB" in err
    assert "epoch 1" not in err
    assert not Path("one").exists()


def test_ctrl_c_saves_and_the_resumed_run_ends_in_the_same_weights(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("compress", *SHORT, "--run-dir", "whole")
    steps: list[int] = []
    with monkeypatch.context() as patch:

        def interrupt(self: TrainingProgress, report: object) -> None:
            steps.append(1)
            if len(steps) == 6:  # in the second epoch of four steps each
                signal.raise_signal(signal.SIGINT)

        patch.setattr(TrainingProgress, "after_step", interrupt)
        code, _, err = run("compress", *SHORT, "--run-dir", "cut")
    assert code == 130
    assert "stopped: in epoch 2 after step 2 of 4" in err
    assert "hwbmpq compress --resume cut" in err
    code, _, err = run("compress", "--resume", "cut")
    assert code == 0, err
    assert_same_weights("whole", "cut")
    assert history_of("whole") == history_of("cut")


def test_a_resumed_run_keeps_its_settings(run: Run) -> None:
    run("compress", *SHORT, "--run-dir", "one")
    code, _, err = run("compress", "--resume", "one", "--epochs", "5")
    assert code == 2
    assert "leave out --epochs" in err
    assert run("compress", "--resume", "one", "--device", "cpu", "-q")[0] == 0


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(run: Run) -> None:
    run("compress", *SHORT, "--run-dir", "one")
    run("compress", *SHORT, "--run-dir", "two")
    for name in ("checkpoint.pt", "checkpoint.previous.pt", "best.pt", "history.jsonl", "allocation.json"):
        Path("two", name).unlink()
    code, _, err = run("compress", "--resume", "two")
    assert code == 0
    assert "two has no checkpoint yet" in err
    assert_same_weights("one", "two")


def test_a_damaged_checkpoint_gives_way_to_the_one_before(run: Run) -> None:
    run("compress", *SHORT, "--run-dir", "one")
    run("compress", *SHORT, "--run-dir", "two")
    data = Path("two/checkpoint.pt").read_bytes()
    Path("two/checkpoint.pt").write_bytes(data[: len(data) // 2])
    code, _, err = run("compress", "--resume", "two")
    assert code == 0
    assert "two/checkpoint.pt is cut short" in err
    assert "the state before is used" in err
    assert_same_weights("one", "two")


def test_a_foreign_checkpoint_is_an_error_that_says_so(run: Run) -> None:
    run("compress", *SHORT, "--run-dir", "one")
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        torch.save({"model": {}}, f"one/{name}")
    code, _, err = run("evaluate", "one")
    assert code == 2
    assert "not a checkpoint of hwbmpq" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "cifar10", "--data-root", "nowhere"], "nowhere/cifar-10-batches-py"),
        (["--data", "cifar10", "--data-root", "nowhere"], "--download"),
        (["--data", "folder:photos"], "photos"),
        (["--num-classes", "7"], "7 outputs, but fake has 10 classes"),
        (["--epochs", "1"], "the budget would never be enforced"),
        (["--method", "hpq"], "one width for all layers"),
        (["--device", "tpu"], "no device 'tpu'"),
        (["--config", "no.yaml"], "no.yaml"),
        (["--lr", "-1"], "--lr -1: must be above 0"),
        (["--decide-after", "1,9"], "after epoch 9 of 3 comes too late"),
    ],
)
def test_bad_input_is_one_clear_sentence(run: Run, words: list[str], told: str) -> None:
    code, _, err = run("compress", *SHORT, "--run-dir", "one", *words)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    assert not Path("one").exists()


def test_what_is_missing_is_named(run: Run) -> None:
    code, _, err = run("compress", "--model", "hwbmpq:resnet8")
    assert code == 2
    assert "--target is missing" in err


def test_an_unknown_setting_in_a_file_is_named(run: Run) -> None:
    Path("run.yaml").write_text("model: hwbmpq:resnet8\ntarget: mpic\nepoch: 3\n")
    code, _, err = run("compress", "--config", "run.yaml")
    assert code == 2
    assert "no setting 'epoch': did you mean epochs?" in err


def test_a_corrupt_image_is_named(run: Run) -> None:
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            folder = Path("photos", part, label)
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (32, 32), (number, 100, 0)).save(folder / f"{number}.png")
    Path("photos/train/dog/1.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    code, _, err = run("compress", *SMALL[:4], "--data", "folder:photos", "--epochs", "2")
    assert code == 2
    assert "photos/train/dog/1.png" in err


def test_an_unwritable_place_is_an_error(run: Run) -> None:
    Path("file").write_text("")
    code, _, err = run("compress", *SHORT, "--run-dir", "file/run")
    assert code == 2
    assert "file/run" in err


def test_a_baseline_is_trained_and_compared(run: Run) -> None:
    code, out, err = run("compress", *SHORT, "--baseline", "--run-dir", "one")
    assert code == 0, err
    assert "W2A8 for all layers" in out
    assert Path("one/baseline/allocation.json").exists()
    assert yaml.safe_load(Path("one/baseline/config.yaml").read_text())["method"] == "hpq"


def test_without_training_the_artefacts_are_the_same(run: Run) -> None:
    code, out, err = run(
        "compress", *SHORT, "--epochs", "0", "--calibration-images", "32", "--run-dir", "one"
    )
    assert code == 0, err
    assert "in float" in out
    names = {path.name for path in Path("one").iterdir()}
    assert names == {
        *("allocation.json", "checkpoint.pt", "config.yaml", "facts.json", "history.jsonl"),
        *("model.safetensors", "report.html"),
    }
    result = json.loads(Path("one/allocation.json").read_text())
    assert result["allocation"]["costs"]["memory"] <= result["allocation"]["budgets"]["memory"]
    evaluated = json.loads(run("evaluate", "one", "--json")[1])
    assert evaluated["test_accuracy"] == result["test_accuracy"]


def test_digits_make_the_input_small_and_the_head_fit() -> None:
    settings = hwbmpq.training.resolve_settings({"model": "timm:resnet18", "target": "jetson_nano"})
    model = load_network(settings, hwbmpq.data.open_data("digits"))
    assert model.input_size == (3, 32, 32)
    assert model.network.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_a_factory_that_takes_no_class_count_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef plain():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))\n"
        "def counted(num_classes):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, num_classes))\n"
    )
    for factory in ("plain", "counted"):
        settings = hwbmpq.training.resolve_settings(
            {"model": f"file:{tmp_path}/net.py:{factory}", "target": "mpic", "input": "3x32x32"}
        )
        model = load_network(settings, hwbmpq.data.open_data("digits"))
        assert model.network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_overwriting_with_a_budget_that_cannot_be_met_leaves_the_old_run(run: Run) -> None:
    run("compress", *SHORT, "--run-dir", "one")
    assert run("compress", *SHORT, "--overwrite", "--budget", "memory=1KiB", "--run-dir", "one")[0] == 2
    assert run("evaluate", "one")[0] == 0


def test_a_run_without_training_cannot_be_resumed_and_stays_as_it_is(run: Run) -> None:
    run("compress", *SHORT, "--epochs", "0", "--calibration-images", "32", "--run-dir", "one")
    before = Path("one/checkpoint.pt").read_bytes()
    code, _, err = run("compress", "--resume", "one")
    assert code == 2
    assert "nothing to continue" in err
    assert Path("one/checkpoint.pt").read_bytes() == before


def test_random_weights_that_nobody_trains_are_pointed_out(run: Run) -> None:
    _, _, err = run("compress", *SHORT, "--epochs", "0", "--calibration-images", "32", "--run-dir", "one")
    assert "the weights are random, and nothing is trained" in err


def test_other_images_do_not_change_the_network_that_is_evaluated(run: Run) -> None:
    run("compress", *SHORT, "--run-dir", "one")
    config = yaml.safe_load(Path("one/config.yaml").read_text())
    assert (config["input"], config["num_classes"]) == ("3x32x32", 10)
    images = np.zeros((20, 48, 48, 3), np.uint8)
    np.savez("other.npz", x_train=images, y_train=np.arange(20) % 9, x_test=images, y_test=np.arange(20) % 9)
    code, out, err = run("evaluate", "one", "--data", "npz:other.npz", "--json")
    assert code == 0, err
    assert json.loads(out)["test_images"] == 20


def test_an_objective_that_cannot_be_had_is_refused_before_training(run: Run) -> None:
    code, _, err = run("compress", *SHORT, "--objective", "hawq", "--run-dir", "one")
    assert code == 2
    assert "use the method hawq" in err
    assert "epoch 1" not in err


def test_the_epochs_of_a_file_can_be_changed(run: Run) -> None:
    run("compress", *SHORT, "--epochs", "4", "--warmup-epochs", "2", "--run-dir", "one")
    code, _, err = run("compress", "--config", "one/config.yaml", "--decide-after", "1,3", "--run-dir", "two")
    assert code == 0, err
    assert "decided after epoch 1, 3" in err


def test_a_profile_in_this_folder_is_found_from_another(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = hwbmpq.hardware.shipped_folder() / "generic.yaml"
    Path("mine.yaml").write_text(Path(str(shipped)).read_text().replace("name: generic", "name: mine"))
    words = ["mine.yaml" if word == "mpic" else word for word in SHORT]
    assert run("compress", *words, "--run-dir", "one")[0] == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert run("compress", "--resume", "../one", "-q")[0] == 0


def test_a_recipe_of_the_paper_is_tried_out_in_a_few_steps_and_resumed(run: Run) -> None:
    small = ["--model", "hwbmpq:resnet8", "--budget", "memory=12x", "--data", "fake", "--train-images", "64"]
    code, out, err = run(
        "compress", "--recipe", "bmpq-cifar10-vgg16", *small, "--max-steps", "7", "--run-dir", "tried"
    )
    assert code == 0, err
    assert "recipe bmpq-cifar10-vgg16; the paper's Table 1: 93.56 % at 10.5x" in err
    assert "decided 6 times" in out
    config = yaml.safe_load(Path("tried/config.yaml").read_text())
    assert (config["epochs"], config["max_steps"], config["lr_schedule"]) == (7, 7, "step")
    code, _, err = run("compress", "--resume", "tried", "--recipe", "bmpq-cifar10-vgg16")
    assert code == 2
    assert "leave out --recipe" in err


def test_an_unknown_recipe_is_an_error_that_names_another(run: Run) -> None:
    code, _, err = run("compress", "--recipe", "bmpq-cifar10-vgg61")
    assert code == 2
    assert "bmpq-cifar10-vgg16" in err


def test_a_recipe_that_is_changed_is_not_held_against_the_paper(run: Run) -> None:
    code, _, err = run(
        *(
            "compress",
            "--recipe",
            "bmpq-cifar10-vgg16",
            "--model",
            "hwbmpq:resnet8",
            "--budget",
            "memory=12x",
        ),
        *(
            "--data",
            "fake",
            "--train-images",
            "8",
            "--test-images",
            "4",
            "--batch-size",
            "4",
            "--max-steps",
            "2",
        ),
    )
    assert code == 0, err
    said = " ".join(err.split())
    assert (
        "not comparable: other budgets, epochs, warmup_epochs, interval_epochs, model, data, train_images"
        in said
    )
    assert "to try it out: 2 epochs, at most 2 steps in all" in said


def test_help_names_every_recipe(run: Run) -> None:
    _, out, _ = run("compress", "--help")
    assert set(hwbmpq.training.PAPER_RECIPES) <= set(out.split())


def test_an_unfinished_run_has_no_best_epoch_and_is_not_given_up(run: Run, tmp_path: Path) -> None:
    code, _, err = run("compress", *SHORT, "--run-dir", "run", "-q")
    assert code == 0, err
    Path("run/best.pt").unlink()
    code, _, err = run("evaluate", "run", "--best")
    assert code == 2
    assert "has no best epoch" in err
    assert "--resume run" in err


def test_a_mistyped_flag_is_answered_in_two_lines(run: Run) -> None:
    code, out, err = run("compress", "--method", "hqp")
    assert (code, out) == (2, "")
    assert err.startswith("error: --method: no method named 'hqp': did you mean hpq?")
    assert err.endswith("try: hwbmpq compress --help\n")
    assert "usage" not in err


def test_overwrite_wants_to_know_which_run(run: Run) -> None:
    code, _, err = run("compress", "--model", "hwbmpq:resnet8", "--target", "mpic", "--overwrite")
    assert code == 2
    assert "--overwrite: which run?" in err
    assert "--run-dir" in err


def test_pinned_layers_stay_at_their_width_and_the_run_can_be_resumed_and_loaded(run: Run) -> None:
    options = (
        "--target",
        "generic",
        "--budget",
        "memory=90%",
        "--pin",
        "layer1.*=8",
        "--keep-float",
        "layer3.0.conv1",
    )
    code, out, err = run("compress", *SHORT, *options, "--run-dir", "one", "--json")
    assert code == 0, err
    widths = {layer["name"]: layer["precision"] for layer in json.loads(out)["layers"]}
    assert widths["layer1.0.conv1"].startswith("W8")
    assert widths["layer3.0.conv1"] == "W32A32"
    settings = yaml.safe_load(Path("one/config.yaml").read_text())
    assert settings["pin"] == {"layer1.*": "8"}
    assert settings["keep_float"] == ["layer3.0.conv1"]
    assert run("compress", "--resume", "one")[0] == 0
    assert run("evaluate", "one", "--runtime", "packed")[0] == 0
    assert run("export", "one")[0] == 0
    network = hwbmpq.load("one/model.safetensors")
    assert str(dict(hwbmpq.quant.quantized_layers(network))["layer3.0.conv1"].precision) == "W32A32"


def test_a_width_that_the_device_stores_wider_is_not_called_as_planned(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    code, out, err = run(
        "compress", *SMALL, "--bits", "3,5", "--epochs", "0", "--test-images", "32", "--run-dir", "one"
    )
    assert code == 0, err
    content = json.loads(Path("one/allocation.json").read_text())
    wider, memory = content["stored"][WIDER], content["costs"]["memory"]["total"]
    on_device = content["packed_file"]["on_device"]["actual_bytes"]
    assert memory == 8 * on_device + wider
    (line,) = [line for line in out.splitlines() if line.startswith("model.safetensors:")]
    assert "as planned" not in line
    assert f"{in_bytes(on_device)} of weights, scales and the rest" in line
    assert f"mpic stores {amount(memory, 'bit')}, since it stores 3 bits as 4" in line

    device = rf"on the device +{amount(memory, 'bit')} +{in_bytes(on_device)}"
    code, out, err = run("export", "one", "--format", "packed", "-o", "again.safetensors")
    assert code == 0, err
    assert re.search(rf"{WIDER} +{amount(wider, 'bit')} ", out)
    assert re.search(rf"{device} +-{amount(wider, 'bit')}", out)
    code, out, err = run("report", "one")
    assert code == 0, err
    assert re.search(rf"{WIDER} +{amount(wider, 'bit')} ", out)
    assert re.search(device, out)

    Path("one/facts.json").write_text("{}")
    code, out, err = run("export", "one", "--format", "packed", "-o", "third.safetensors")
    assert code == 0, err
    assert Path("third.safetensors").read_bytes() == Path("again.safetensors").read_bytes()
    assert "what the device stores is not known" in out


def test_widths_that_the_device_has_are_stored_as_planned(run: Run) -> None:
    words = ["--bits", "2,4", "--epochs", "0", "--test-images", "32", "--run-dir", "one"]
    code, out, err = run("compress", *SMALL, *words)
    assert code == 0, err
    content = json.loads(Path("one/allocation.json").read_text())
    assert content["costs"]["memory"]["total"] == 8 * content["packed_file"]["on_device"]["actual_bytes"]
    assert "of weights, scales and the rest, as planned, and" in " ".join(out.split())
    code, out, err = run("export", "one", "--format", "packed", "-o", "again.safetensors")
    assert code == 0, err
    assert WIDER not in out
