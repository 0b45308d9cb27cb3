"""What 0.1.0 wrote is still read: its runs, packed files, ONNX files, states, tables and profiles lead to the outputs,
widths and printed numbers that they led to then, bit for bit.

The files are in v0_1_0, made once by make_v0_1_0.py with the code of that version. Bits also depend on torch, ONNX
Runtime and the processor; where these compute other bits by themselves, outputs are only compared roughly, and tests of
whole trainings are skipped.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor, nn

import hwbmpq
from hwbmpq.cli.main import main as command_line

MADE = Path(__file__).parent / "v0_1_0"
PRINTED: dict[str, Any] = json.loads((MADE / "printed.json").read_text())
INPUTS: Mapping[str, NDArray[Any]] = dict(np.load(MADE / "inputs.npz"))
OUTPUTS: Mapping[str, NDArray[Any]] = dict(np.load(MADE / "outputs.npz"))
WIDTHS = {"0": "W16A16", "3": "W2A8", "6": "W3A4", "10": "W4A3", "15": "W5A5", "17": "W8A8"}
"""Of the packed files and of the state."""
EXPORTS = {
    "model.onnx": (),
    "model.int8.onnx": ("--runtime-compat", "int8"),
    "model.int8-vnni.onnx": ("--runtime-compat", "int8-vnni"),
}
ROUGHLY = 1e-3
"""Of the outputs' range, in the median: one value may always land on the other side of a rounding boundary."""


def main(words: list[str]) -> int:
    """As in 0.1.0, with one word more: the runs' settings name code (file:net.py:make_net), which now needs consent."""
    opens_a_run = words[0] in ("evaluate", "export", "benchmark", "compress")
    return command_line([*words, "--trust"] if opens_a_run else words)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a copy of the files; no profiles of the user."""
    copy = tmp_path / "copy"
    shutil.copytree(MADE, copy)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("HWBMPQ_PROFILES", str(tmp_path / "none"))


@cache
def torch_is_the_same() -> bool:
    """Whether torch by itself computes the bits here that it did where the files were made."""
    found: Tensor = run_path(str(MADE / "net.py"))["arithmetic"]()
    return np.array_equal(found.numpy(), OUTPUTS["arithmetic"])


@cache
def onnxruntime_is_the_same() -> bool:
    made = json.loads((MADE / "environment.json").read_text())
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    here = {"onnxruntime": onnxruntime.__version__, "vnni": "vnni" in flags}
    return here == made and torch_is_the_same()


@pytest.fixture
def _same_torch() -> None:
    if not torch_is_the_same():
        pytest.skip("torch computes other bits here than where the files were made: trainings go other ways")


def own_net() -> nn.Module:
    """Other weights than any file has."""
    net: nn.Module = run_path("net.py")["make_net"]()
    return net


def answers(network: nn.Module, images: str) -> NDArray[Any]:
    with torch.no_grad():
        found: Tensor = network.eval()(torch.from_numpy(INPUTS[images]))
    return found.numpy()


def in_onnxruntime(path: str | Path) -> NDArray[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    found: NDArray[Any] = session.run(None, {session.get_inputs()[0].name: INPUTS["grey"]})[0]
    return found


def assert_as_made(found: NDArray[Any], name: str, *, bit_for_bit: bool) -> None:
    wanted = OUTPUTS[name]
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if bit_for_bit:
        assert np.array_equal(found, wanted), f"{name}: {np.abs(found - wanted).max()} off"
    else:
        assert np.median(np.abs(found - wanted)) <= ROUGHLY * np.ptp(wanted)


def assert_still_says(found: Any, wanted: Any, where: str = "", *, tolerance: float = 0.0) -> None:
    """Everything that was said then is said now; more may be. How long something took is left out."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), where
        for name in wanted.keys() - {"seconds"}:
            assert name in found, f"{where}.{name} is gone"
            assert_still_says(found[name], wanted[name], f"{where}.{name}", tolerance=tolerance)
    elif isinstance(wanted, list):
        assert isinstance(found, list), where
        assert len(found) == len(wanted), where
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_still_says(one, other, f"{where}.{index}", tolerance=tolerance)
    elif isinstance(wanted, float) and tolerance:
        assert found == pytest.approx(wanted, abs=tolerance), where
    else:
        assert type(found) is type(wanted), where
        assert found == wanted, where


def assert_equal(found: Any, wanted: Any, where: str = "") -> None:
    """Of states: the same names in the same order, and the same bits; plain values may have got new names since."""
    if isinstance(wanted, Tensor):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        assert torch.equal(found, wanted), where
    elif isinstance(wanted, Mapping):
        is_state = any(isinstance(value, Tensor) for value in wanted.values())
        names = list(found) if is_state else [name for name in found if name in wanted]
        assert names == list(wanted), where
        for name in wanted.keys() - {"seconds"}:
            assert_equal(found[name], wanted[name], f"{where}.{name}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), where
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_equal(one, other, f"{where}.{index}")
    else:
        assert found == wanted, where


def checkpoint(run: str) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(f"{run}/checkpoint.pt", weights_only=True)
    return content


def history(run: str) -> list[Any]:
    return [json.loads(line) for line in Path(run, "history.jsonl").read_text().splitlines()]


def widths_of(network: nn.Module) -> dict[str, str]:
    return {name: str(layer.precision) for name, layer in hwbmpq.quant.quantized_layers(network)}


def assert_same_end(run: str, wanted: str) -> None:
    """Two runs ended in the same weights, optimizer, widths, history and packed file."""
    for part in ("model", "optimizer", "allocator", "progress"):
        assert_equal(checkpoint(run)[part], checkpoint(wanted)[part], part)
    found, expected = load_file(f"{run}/model.safetensors"), load_file(f"{wanted}/model.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert_still_says(history(run), history(wanted))
    allocation = json.loads(Path(wanted, "allocation.json").read_text())
    del allocation["packed_file"]  # its header names the version, which may be longer now
    assert_still_says(json.loads(Path(run, "allocation.json").read_text()), allocation)


# what commands print


@pytest.mark.parametrize("line", PRINTED)
def test_a_command_prints_what_it_printed_about_the_same_files(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 0
    is_same = onnxruntime_is_the_same() if "onnxruntime" in line else torch_is_the_same()
    rounding = 0.03 if line.startswith("evaluate") and not is_same else 0.0
    assert_still_says(json.loads(capsys.readouterr().out), PRINTED[line], tolerance=rounding)


def test_accuracies_are_printed_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    if not torch_is_the_same():
        pytest.skip("torch computes other bits here than where the files were made")
    for run, words in (("trained", "test accuracy 33.61%"), ("calibrated", "test accuracy 11.67%")):
        assert main(["evaluate", run]) == 0
        assert words in capsys.readouterr().out


# runs


@pytest.mark.usefixtures("_same_torch")
def test_a_stopped_run_goes_on_and_ends_in_the_weights_of_the_one_that_was_not_stopped() -> None:
    assert checkpoint("stopped")["progress"]["batch"] == 3  # inside an epoch, before the second decision
    assert main(["compress", "--resume", "stopped", "--quiet"]) == 0
    assert_same_end("stopped", "trained")


@pytest.mark.usefixtures("_same_torch")
def test_a_config_repeats_its_run_with_the_same_weights() -> None:
    line = ["compress", "--config", "trained/config.yaml", "--run-dir", "again", "--quiet"]
    assert main(line) == 0
    for part in ("model", "optimizer", "allocator", "progress"):
        assert_equal(checkpoint("again")[part], checkpoint("trained")[part], part)


def test_a_finished_run_that_is_resumed_stays_as_it_is() -> None:
    before = checkpoint("trained")
    assert main(["compress", "--resume", "trained", "--quiet"]) == 0
    assert_equal(checkpoint("trained"), before)
    assert_as_made(
        answers(hwbmpq.load("trained", model=own_net()), "grey"), "trained", bit_for_bit=torch_is_the_same()
    )


def test_a_run_that_names_a_network_of_ours_loads_without_it() -> None:
    network = hwbmpq.load("calibrated")
    wanted = json.loads(Path("calibrated/allocation.json").read_text())["allocation"]["bits"]
    assert widths_of(network) == wanted
    assert_as_made(answers(network, "colour"), "calibrated", bit_for_bit=torch_is_the_same())


def test_a_run_exports_the_packed_file_that_it_had() -> None:
    wanted = {name: load_file(f"{name}/model.safetensors") for name in ("trained", "calibrated")}
    for name, tensors in wanted.items():
        assert main(["export", name, "--format", "packed", "-o", "new.safetensors", "--json"]) == 0
        found = load_file("new.safetensors")
        assert found.keys() == tensors.keys()
        for key in tensors:
            assert np.array_equal(found[key], tensors[key]), key


# packed files


@pytest.mark.parametrize("name", ["per_tensor", "per_channel"])
def test_a_packed_file_loads_to_the_same_widths_and_outputs(name: str) -> None:
    network = hwbmpq.load(f"{name}.safetensors", model=own_net())
    assert widths_of(network) == WIDTHS
    assert_as_made(answers(network, "grey"), name, bit_for_bit=torch_is_the_same())


@pytest.mark.parametrize("name", ["per_tensor", "per_channel"])
def test_a_packed_file_that_is_loaded_and_saved_holds_the_same_bytes(name: str) -> None:
    network = hwbmpq.load(f"{name}.safetensors", model=own_net())
    example = torch.from_numpy(INPUTS["grey"])
    hwbmpq.export.save_packed(network, "new.safetensors", example_input=example)
    found, wanted = load_file("new.safetensors"), load_file(f"{name}.safetensors")
    assert found.keys() == wanted.keys()
    for key in wanted:
        assert found[key].dtype == wanted[key].dtype
        assert np.array_equal(found[key], wanted[key]), key


# ONNX files


@pytest.mark.parametrize("name", EXPORTS)
def test_an_onnx_file_gives_the_outputs_that_it_gave(name: str) -> None:
    assert_as_made(in_onnxruntime(f"trained/{name}"), name, bit_for_bit=onnxruntime_is_the_same())
    network = hwbmpq.export.OnnxNetwork(f"trained/{name}", threads=1)
    assert network.has_checksum
    assert np.array_equal(network(INPUTS["grey"]), in_onnxruntime(f"trained/{name}"))


@pytest.mark.parametrize("name", EXPORTS)
def test_a_run_exports_an_onnx_file_that_computes_what_the_old_one_does(name: str) -> None:
    assert main(["export", "trained", *EXPORTS[name], "--compare", "16", "-o", "new.onnx", "--json"]) == 0
    assert np.array_equal(in_onnxruntime("new.onnx"), in_onnxruntime(f"trained/{name}"))


def test_a_qonnx_file_gives_the_outputs_that_it_gave_and_is_exported_alike() -> None:
    pytest.importorskip("qonnx")
    network = hwbmpq.export.QonnxNetwork(Path("trained/model.qonnx.onnx").read_bytes())
    old = network(INPUTS["grey"])
    assert_as_made(old, "model.qonnx.onnx", bit_for_bit=onnxruntime_is_the_same())
    assert main(["export", "trained", "--format", "qonnx", "--compare", "1", "-o", "new.onnx", "--json"]) == 0
    new = hwbmpq.export.QonnxNetwork(Path("new.onnx").read_bytes())
    assert np.array_equal(new(INPUTS["grey"]), old)


# states in one's own files


def test_a_state_dict_has_the_same_keys_and_gives_the_same_outputs() -> None:
    state = torch.load("state.pt", weights_only=True)
    net = own_net()
    hwbmpq.quant.prepare(net, hwbmpq.describe(net, torch.from_numpy(INPUTS["grey"])), per_channel=True)
    assert list(net.state_dict()) == list(state)
    net.load_state_dict(state)
    assert widths_of(net) == WIDTHS
    assert_equal(net.state_dict(), state)
    assert_as_made(answers(net, "grey"), "state", bit_for_bit=torch_is_the_same())
    hwbmpq.quant.assign(net, {"3": (8, 8), "10": (2, 2), "15": 4})
    assert_as_made(answers(net, "grey"), "state at other widths", bit_for_bit=torch_is_the_same())


@pytest.mark.usefixtures("_same_torch")
def test_a_training_loop_of_ones_own_goes_on_and_ends_in_the_same_weights_and_widths() -> None:
    net = own_net()
    images, labels = torch.from_numpy(INPUTS["grey"]), torch.from_numpy(INPUTS["labels"])
    allocator = hwbmpq.BitAllocator(
        *(net, images[:1]),
        target="board.yaml",
        budgets={"memory": "8x"},
        bits=(2, 3, 4, 5, 8),
        objective="error",
        epochs=5,
        warmup_epochs=1,
        interval_epochs=2,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    states = torch.load("loop.pt", weights_only=True)
    for name, part in (("net", net), ("optimizer", optimizer), ("allocator", allocator)):
        part.load_state_dict(states[name])
    for epoch in range(2, 5):
        for half in range(1 if epoch == 2 else 0, 2):  # it was saved between the halves of the third epoch
            part_of_them = slice(4 * half, 4 * half + 4)
            loss = nn.functional.cross_entropy(net(images[part_of_them]), labels[part_of_them])
            loss.backward()  # type: ignore[no-untyped-call]
            allocator.step()
            optimizer.step()
            optimizer.zero_grad()
        allocator.epoch_end()
    wanted = torch.load("loop_end.pt", weights_only=True)
    assert wanted["allocator"]["bits"] != states["allocator"]["bits"]  # there was something to decide
    assert_equal(allocator.state_dict(), wanted["allocator"])
    assert_equal(net.state_dict(), wanted["net"])


# measurements


def test_results_of_a_kit_become_the_same_profile_and_table() -> None:
    line = ["targets", "import", "measured", "results.json", "-o", "new", "--json"]
    assert main(line) == 0
    profiles = [yaml.safe_load(Path(folder, "measured.yaml").read_text()) for folder in ("new", "measured")]
    tables = []
    for folder, profile in zip(("new", "measured"), profiles, strict=True):
        (table,) = profile["lookup_tables"]
        tables.append(json.loads(Path(folder, table.pop("file")).read_text()))
        del table["sha256"]
    memory = [profile["cost_models"].pop("memory") for profile in profiles]
    # A profile that is made now counts the whole network; the old one is read as it was meant.
    assert memory == [{"model": "stored_memory"}, {"model": "weight_memory"}]
    assert_still_says(profiles[0], profiles[1])
    assert_still_says(tables[0], tables[1])
