"""Own data on the command line: normalisation, arrays, loaders, and accuracies that guessing gives."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import hwbmpq
from hwbmpq.cli.main import main
from hwbmpq.cli.options.network import own_normalisation

NETS = """
import torch
from torch import nn

def digits():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    net.input_size = (1, 8, 8)
    return net

def signals(num_classes=4):
    return nn.Sequential(
        nn.Conv1d(6, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 8, 5, padding=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, num_classes),
    )

class Tokens(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.hidden = nn.Linear(8, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, num_classes)

    def forward(self, ids):
        return self.head(torch.relu(self.middle(torch.relu(self.hidden(self.embed(ids).mean(1))))))
"""
DATA = """
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

def parts():
    arrays = np.load("signals.npz")
    for part in ("train", "test"):
        yield TensorDataset(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]))

def make_loaders():
    train, test = parts()
    return DataLoader(train, batch_size=20, shuffle=True), DataLoader(test, batch_size=40)

def make_datasets():
    return tuple(parts())
"""
Run = Callable[..., tuple[int, str, str]]
OWN = ["--target", "mpic", "--batch-size", "20", "--model"]


def save_parts(name: str, samples: object) -> None:
    labels = np.arange(160) % 4
    values = np.asarray(samples)
    np.savez(name, x_train=values[:120], y_train=labels[:120], x_test=values[120:], y_test=labels[120:])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Type a command in a folder with networks and data: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("nets.py").write_text(NETS)
    Path("data.py").write_text(DATA)
    random = np.random.default_rng(0)
    signals = random.normal(size=(160, 6, 30)).astype(np.float32) + np.arange(160)[:, None, None] % 4
    save_parts("signals.npz", signals.astype(np.float32))
    save_parts("last.npz", signals.astype(np.float32).transpose(0, 2, 1))
    save_parts("tokens.npz", random.integers(0, 50, (160, 12)))
    for number, (signal, label) in enumerate(zip(signals, np.arange(160) % 4, strict=True)):
        place = Path("folder", "train" if number < 120 else "val", f"class{label}")
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number}.npy", signal.astype(np.float32))

    def typed(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


def train_on_0_to_1(path: str) -> float:
    """Save weights of a network that was trained on pixels from 0 to 1; returns its accuracy on those."""
    data = hwbmpq.data.load_data("digits", input_size=(1, 8, 8), normalise="none")
    net = hwbmpq.models.load_model("file:nets.py:digits", seed=0).network
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for epoch in range(12):
        for images, labels in hwbmpq.data.TrainingBatches(data.train, batch_size=64).epoch(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    torch.save(net.state_dict(), path)
    return hwbmpq.training.evaluate(net, data.test.batches(250)).value


def result_of(folder: str) -> dict[str, object]:
    content: dict[str, object] = json.loads(Path(folder, "allocation.json").read_text())
    return content


def test_a_network_trained_on_0_to_1_gets_0_to_1(run: Run) -> None:
    accuracy = train_on_0_to_1("net.pt")
    words = [
        "compress",
        *OWN,
        "file:nets.py:digits",
        "--weights",
        "net.pt",
        "--epochs",
        "0",
        "--run-dir",
        "one",
    ]
    code, _, err = run(*words, "--normalise", "none")
    assert code == 0, err
    assert "inputs: pixels from 0 to 1, not normalised" in err
    assert result_of("one")["float_accuracy"] == accuracy > 0.9
    assert yaml.safe_load(Path("one/config.yaml").read_text())["normalise"] == "none"
    # What other commands and --config get without being told:
    _, out, _ = run("evaluate", "one", "--trust", "--json")
    assert json.loads(out)["test_accuracy"] == result_of("one")["test_accuracy"]
    code, _, err = run(*words[:-1], "two")
    assert code == 0, err
    assert (
        "inputs: normalised with mean 0.3054, std 0.3758 (of the data); --normalise none feeds 0 to 1" in err
    )
    worse = result_of("two")["float_accuracy"]
    assert isinstance(worse, float)
    assert worse < accuracy - 0.05
    stored = yaml.safe_load(Path("two/config.yaml").read_text())["normalise"]
    assert [round(float(number), 4) for number in stored.split("/")] == [0.3054, 0.3758]


def test_mean_and_std_reach_the_files_of_a_run(run: Run) -> None:
    words = ["--target", "mpic", "--model", "hwbmpq:resnet8", "--data", "fake", "--test-images", "16"]
    given = ["--mean", "0.5,0.4,0.3", "--std", "0.25"]
    code, _, err = run(
        "compress", *words, *given, "--epochs", "0", "--calibration-images", "16", "--run-dir", "one"
    )
    assert code == 0, err
    assert "inputs: normalised with mean 0.5, 0.4, 0.3, std 0.25 (as given)" in err
    assert yaml.safe_load(Path("one/config.yaml").read_text())["normalise"] == "0.5,0.4,0.3/0.25,0.25,0.25"
    assert json.loads(Path("one/facts.json").read_text())["settings"]["normalise"].startswith("0.5,0.4,0.3/")
    packed = Path("one/model.safetensors").read_bytes()
    assert b'"normalisation"' in packed.replace(b"\\", b"")
    _, out, _ = run("evaluate", "one")
    assert "inputs: normalised with mean 0.5, 0.4, 0.3, std 0.25 (as in the run)" in out
    code, out, _ = run("evaluate", "one", "--json", "--normalise", "none")
    assert json.loads(out)["normalise"] == "none"
    code, out, err = run(
        "compress", *words, "--config", "one/config.yaml", "--normalise", "data", "--mean", "1"
    )
    assert code == 2
    assert "give --mean and --std together, without --normalise" in err


def assert_trains(run: Run, model: str, data: str, *options: str) -> tuple[str, float]:
    """Train and evaluate: what was printed, and the accuracy."""
    code, _, err = run(
        "compress",
        *OWN,
        f"file:nets.py:{model}",
        "--data",
        data,
        *options,
        "--epochs",
        "2",
        "--run-dir",
        "one",
    )
    assert code == 0, err
    assert "augmentation: none, since the samples are not images" in err
    code, out, problem = run("evaluate", "one", "--trust", "--json")
    assert code == 0, problem
    accuracy: float = json.loads(out)["test_accuracy"]
    assert accuracy == result_of("one")["test_accuracy"]
    return err, accuracy


def assert_whole_way_works(run: Run, model: str, data: str) -> str:
    """Train, evaluate, export, run and time: what the first printed."""
    err, accuracy = assert_trains(run, model, data)
    code, _, problem = run("export", "one", "--trust", "--compare", "16")
    assert code == 0, problem
    code, out, problem = run("evaluate", "one", "--trust", "--json", "--runtime", "onnxruntime")
    assert code == 0, problem
    assert json.loads(out)["test_accuracy"] == pytest.approx(accuracy, abs=0.1)
    code, _, problem = run("benchmark", "one", "--trust", "--rounds", "2", "--json")
    assert code == 0, problem
    return err


@pytest.mark.parametrize("data", ["npz:signals.npz", "file:data.py:make_loaders"])
def test_signals_go_the_whole_way(run: Run, data: str) -> None:
    assert_whole_way_works(run, "signals", data)


@pytest.mark.parametrize("data", ["folder:folder", "file:data.py:make_datasets"])
def test_signals_train_from_files_and_data_sets(run: Run, data: str) -> None:
    assert_trains(run, "signals", data)


def test_channels_last_train(run: Run) -> None:
    err, _ = assert_trains(run, "signals", "npz:last.npz", "--layout", "channels-last")
    assert "at 6x30 on mpic" in err


def test_token_ids_go_the_whole_way(run: Run) -> None:
    err = assert_whole_way_works(run, "Tokens", "npz:tokens.npz")
    assert "inputs: integers as they are (int64)" in err


@pytest.mark.parametrize(
    ("model", "data"),
    [("signals", "npz:signals.npz"), ("signals", "file:data.py:make_loaders"), ("Tokens", "npz:tokens.npz")],
)
def test_plans_are_calibrated_on_arrays(run: Run, model: str, data: str) -> None:
    code, out, err = run(
        "plan", "--model", f"file:nets.py:{model}", "--target", "mpic", "--data", data, "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["inputs"].startswith("inputs: ")
    assert any("that is about what guessing gives" in remark for remark in found["sensitivity"]["remarks"])


def test_a_network_of_another_layout_is_told_about_it(run: Run) -> None:
    code, _, err = run("compress", *OWN, "file:nets.py:signals", "--data", "npz:last.npz", "--epochs", "0")
    assert code == 2
    assert "the network cannot take samples of 30x6" in err
    assert "--layout channels-last" in err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("npz:signals.npz", "flip-crop is for images, which these arrays are not"),
        ("file:data.py:make_loaders", "your own loaders augment their inputs themselves"),
    ],
)
def test_augmenting_arrays_is_refused(run: Run, data: str, message: str) -> None:
    words = ["--data", data, "--epochs", "2", "--augment", "flip-crop"]
    code, _, err = run("compress", *OWN, "file:nets.py:signals", *words)
    assert code == 2
    assert message in err


def test_weights_that_only_guess_are_a_loud_warning_everywhere(run: Run) -> None:
    network = hwbmpq.models.load_model("hwbmpq:resnet8", seed=3).network
    torch.save(network.state_dict(), "other.pt")
    words = ["--model", "hwbmpq:resnet8", "--weights", "other.pt", "--target", "mpic", "--data", "digits"]
    code, out, err = run(
        "compress",
        *words,
        "--epochs",
        "0",
        "--calibration-images",
        "32",
        "--run-dir",
        "one",
        "--input",
        "3x8x8",
    )
    assert code == 0
    for printed in (out, err):
        assert "WARNING: in float the network is right on" in printed
        assert "that is about what guessing gives, with 10 classes" in printed
    remarks = result_of("one")["remarks"]
    assert isinstance(remarks, list)
    assert remarks[0].startswith("WARNING: in float the network")
    assert "WARNING: in float the network" in Path("one/report.html").read_text()
    code, out, _ = run("evaluate", "one", "--json")
    assert json.loads(out)["warnings"][0].startswith("WARNING: the network is right on")
    code, out, _ = run("plan", *words, "--images", "64", "--input", "3x8x8")
    assert "WARNING: the network is right on" in out


def test_weights_that_are_to_be_trained_further_are_warned_about_before(run: Run) -> None:
    network = hwbmpq.models.load_model("hwbmpq:resnet8", seed=3).network
    torch.save(network.state_dict(), "other.pt")
    words = ["--model", "hwbmpq:resnet8", "--weights", "other.pt", "--target", "mpic", "--train-images", "64"]
    code, _, err = run("compress", *words, "--epochs", "2", "--run-dir", "one", "--input", "3x8x8")
    assert code == 0, err
    assert err.index("WARNING: in float the network") < err.index("epoch 1/2")


LOADED = """

def loaded():
    net = digits()
    net.load_state_dict(torch.load("net.pt"))
    return net
"""


@pytest.mark.parametrize("epochs", ["0", "2"])
def test_weights_that_a_models_own_code_loads_have_a_float_figure(run: Run, epochs: str) -> None:
    accuracy = train_on_0_to_1("net.pt")
    Path("nets.py").write_text(Path("nets.py").read_text() + LOADED)
    words = ["compress", *OWN, "file:nets.py:loaded", "--epochs", epochs, "--train-images", "320"]
    code, out, err = run(*words, "--normalise", "none", "--run-dir", "one")
    assert code == 0, err
    assert result_of("one")["float_accuracy"] == accuracy > 0.9
    assert "the weights it began with had" in out
    assert "WARNING" not in err
    code, _, err = run(*words, "--normalise", "9/0.01", "--run-dir", "two")
    assert code == 0, err
    assert "WARNING: in float the network is right on" in err
    assert "Unless its weights are random, likely causes: " in err
    if epochs != "0":  # they may as well have been random: not a figure to compare with
        assert result_of("two")["float_accuracy"] is None


def test_an_exported_network_brings_trained_weights(run: Run) -> None:
    network = hwbmpq.models.load_model("file:nets.py:digits", seed=0).network.eval()
    batch = {0: torch.export.Dim("batch", min=1, max=1024)}
    torch.export.save(
        torch.export.export(network, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=[batch]), "net.pt2"
    )
    code, _, err = run(
        "compress", *OWN, "file:net.pt2", "--epochs", "2", "--train-images", "64", "--run-dir", "one"
    )
    assert code == 0, err
    assert "WARNING: in float the network is right on" in err
    assert "Likely causes: " in err
    assert "random" not in err


def test_a_good_network_gets_no_warning(run: Run) -> None:
    train_on_0_to_1("net.pt")
    words = [*OWN, "file:nets.py:digits", "--weights", "net.pt", "--normalise", "none"]
    code, out, err = run("compress", *words, "--epochs", "0", "--run-dir", "one")
    assert code == 0
    assert "WARNING" not in out + err


def test_a_networks_own_input_size_stands_above_the_datas(run: Run) -> None:
    code, _, err = run("compress", *OWN, "file:nets.py:digits", "--epochs", "0", "--run-dir", "one")
    assert code == 0, err
    assert "digits at 1x8x8 on mpic" in err


def test_a_plan_of_a_zoos_network_keeps_its_input_size(run: Run) -> None:
    words = [
        "--model",
        "timm:mobilenetv3_small_050",
        "--target",
        "mpic",
        "--images",
        "2",
        "--brief",
        "--json",
    ]
    code, out, err = run("plan", *words)
    assert code == 0, err
    assert json.loads(out)["input_size"] == [3, 224, 224]


def test_pretrained_weights_of_timm_get_the_normalisation_that_they_were_trained_with() -> None:
    network = nn.Linear(2, 2)
    network.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": [0.25, 0.25, 0.25]}  # type: ignore[assignment]
    model = hwbmpq.models.sources.LoadedModel(spec="timm:some", network=network, input_size=(3, 8, 8))
    settings = {"model": "timm:some", "target": "mpic"}
    pretrained = hwbmpq.training.resolve_settings({**settings, "pretrained": True})
    found = own_normalisation(pretrained, model)
    assert found is not None
    data = hwbmpq.data.open_data("fake").sized((3, 8, 8), normalise=found)
    assert "mean 0.5, 0.4, 0.3, std 0.25 (of the pretrained weights)" in data.inputs
    assert own_normalisation(hwbmpq.training.resolve_settings(settings), model) is None
