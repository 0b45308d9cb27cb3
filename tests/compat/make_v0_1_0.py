"""Make tests/compat/v0_1_0: what hwbmpq 0.1.0 leaves behind, and what it computes and prints from it.

Run once, with the code of 0.1.0 and one thread, in a checkout of that version:

    OMP_NUM_THREADS=1 PYTHONPATH=CHECKOUT python tests/compat/make_v0_1_0.py FOLDER

FOLDER holds net.py and board.yaml, which are written by hand; everything else in it is made anew. Later versions
never run this: they have to read what is there (test_v0_1_0.py).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NET = ("--model", "file:net.py:make_net", "--input", "1x8x8")
TRAINING = (
    *("compress", *NET, "--target", "board.yaml", "--bits", "2,3,4,5,8", "--budget", "memory=8x"),
    *("--objective", "error", "--epochs", "5", "--warmup-epochs", "1", "--interval-epochs", "2"),
    *("--max-steps", "30", "--lr", "0.1", "--seed", "3", "--device", "cpu", "--quiet"),
)
CALIBRATION = (
    *("compress", "--model", "hwbmpq:resnet8", "--input", "3x8x8", "--target", "board.yaml"),
    *("--bits", "2,3,4,5,8", "--budget", "memory=9x", "--epochs", "0", "--calibration-images", "64"),
    *("--seed", "3", "--device", "cpu", "--quiet"),
)
STOPPED_AT = 15
"""The third of six steps of the third epoch of five; widths are decided after the first and the third."""
WIDTHS = {"0": (16, 16), "3": (2, 8), "6": (3, 4), "10": (4, 3), "15": (5, 5), "17": (8, 8)}
OTHER_WIDTHS = {"3": (8, 8), "10": (2, 2), "15": 4}
PLAN = ("--target", "board.yaml", "--bits", "2,4,8", "--budget", "memory=8x", "--json")
COMMANDS = (
    "evaluate trained --json",
    "evaluate trained --runtime packed --json",
    "evaluate trained --runtime onnxruntime --json",
    "evaluate trained --runtime onnxruntime --file trained/model.int8.onnx --json",
    "evaluate trained --runtime onnxruntime --file trained/model.int8-vnni.onnx --json",
    "evaluate stopped --json",
    "evaluate stopped --best --json",
    "evaluate calibrated --json",
    "evaluate calibrated --runtime packed --json",
    "report trained --json",
    "report stopped --json",
    "report calibrated --json",
    " ".join(["plan", *NET, *PLAN, "--sensitivity", "sensitivity.json"]),
    " ".join(["plan", *NET, *PLAN, "--sensitivity", "sensitivity.json", "--objective", "error"]),
    " ".join(["targets", "show", "board.yaml", *NET, "--json"]),
    " ".join(["targets", "show", "measured/measured.yaml", *NET, "--json"]),
    "targets import again results.json -o imported --json",
)
"""Their output is kept, by the line itself."""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ["HWBMPQ_PROFILES"] = "none"
    for old in Path().iterdir():
        if old.name not in ("net.py", "board.yaml"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    make_runs()
    make_sensitivity()
    make_measurement()
    inputs = make_inputs()
    outputs = {**packed_outputs(inputs), **run_outputs(inputs), **onnx_outputs(inputs)}
    outputs |= {**state_outputs(inputs), "arithmetic": run_path("net.py")["arithmetic"]().numpy()}
    make_loop(inputs)
    np.savez_compressed("inputs.npz", **inputs)
    np.savez_compressed("outputs.npz", **outputs)
    save_json("printed.json", {line: json.loads(command(*line.split())) for line in COMMANDS})
    save_json("environment.json", environment())
    shutil.rmtree("imported")
    shutil.rmtree("__pycache__", ignore_errors=True)


def command(*arguments: str, code: int = 0) -> str:
    """What ``hwbmpq …`` prints."""
    from hwbmpq.cli import training_options
    from hwbmpq.cli.main import main as run

    # The paths of runs would be those of the folder in which this happens to run.
    training_options._with_absolute_paths = dict
    sys.argv[1:] = arguments  # which a run writes down
    with redirect_stdout(StringIO()) as printed:
        found = run(arguments)
    assert found == code, f"{arguments}: {found}"
    return printed.getvalue()


def save_json(path: str, content: Any) -> None:
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def environment() -> dict[str, Any]:
    """What may change the bits of ONNX Runtime's outputs."""
    import onnxruntime

    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return {"onnxruntime": onnxruntime.__version__, "vnni": "vnni" in flags}


def make_runs() -> None:
    command(*TRAINING, "--run-dir", "trained")
    for form in ((), ("--runtime-compat", "int8"), ("--runtime-compat", "int8-vnni"), ("--format", "qonnx")):
        command("export", "trained", *form, "--json")
    stop_after(STOPPED_AT, *TRAINING, "--run-dir", "stopped")
    command(*CALIBRATION, "--run-dir", "calibrated")
    for name in ("trained/best.pt", "stopped/checkpoint.previous.pt", "trained/checkpoint.previous.pt"):
        Path(name).unlink()  # nothing needs them
    for name in ("trained", "calibrated"):
        Path(name, "report.html").unlink()


def stop_after(steps: int, *arguments: str) -> None:
    """A run that somebody stops by Ctrl-C."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    taken: list[int] = []

    def count(*_: object) -> None:
        taken.append(1)
        if len(taken) == steps:
            signal.raise_signal(signal.SIGINT)

    hook = register_optimizer_step_post_hook(count)
    try:
        command(*arguments, code=130)
    finally:
        hook.remove()


def make_sensitivity() -> None:
    command("plan", *NET, *PLAN, "--save-sensitivity", "sensitivity.json")


def make_measurement() -> None:
    """Results of a kit, on a machine whose name is nobody's business, and the profile made of them."""
    from hwbmpq.measure import kit_runner

    command("targets", "measure", "kit", *NET, "--widths", "W4A8,W8A8,W32A32", "--kit", "kit.zip")
    with zipfile.ZipFile("kit.zip") as kit:
        kit.extractall()
    subprocess.run([sys.executable, "run.py", "--rounds", "4"], cwd="kit", check=True, capture_output=True)
    results = json.loads(Path("kit/results.json").read_text())
    results["machine"] |= {"cpu": "A processor", "board": "", "system": "Linux", "date": "2026-01-01"}
    results["machine"] |= {"flags": ["avx2"], "cores": 2, "pinned_to": [0]}
    content = {name: value for name, value in results.items() if name != "sha256"}
    text = json.dumps({**content, "sha256": kit_runner.digest(content)})
    Path("results.json").write_text(text + "\n")
    command("targets", "import", "measured", "results.json", "-o", "measured", "--json")
    shutil.rmtree("kit")
    Path("kit.zip").unlink()


def make_inputs() -> dict[str, Any]:
    draw = torch.Generator().manual_seed(5)
    return {
        "grey": torch.randn(8, 1, 8, 8, generator=draw).numpy(),
        "colour": torch.randn(8, 3, 8, 8, generator=draw).numpy(),
        "labels": torch.randint(10, (8,), generator=draw).numpy(),
    }


def own_net() -> nn.Module:
    torch.manual_seed(7)
    net: nn.Module = run_path("net.py")["make_net"]()
    return net


def answers(network: nn.Module, images: Any) -> Any:
    with torch.no_grad():
        found: Tensor = network.eval()(torch.from_numpy(images))
    return found.numpy()


def prepared(images: Any, *, per_channel: bool) -> nn.Module:
    """The network at every width, after a few batches that place the clipping points and the norms."""
    import hwbmpq

    net, batch = own_net(), torch.from_numpy(images)
    hwbmpq.quant.prepare(net, hwbmpq.describe(net, batch), per_channel=per_channel)
    hwbmpq.quant.assign(net, WIDTHS)
    with torch.no_grad():
        for scale in (1.0, 0.5, 2.0):
            net.train()(batch * scale)
    return net.eval()


def packed_outputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    import hwbmpq

    found = {}
    for name, per_channel in (("per_tensor", False), ("per_channel", True)):
        net = prepared(inputs["grey"], per_channel=per_channel)
        origin = {"model": "file:net.py:make_net", "num_classes": 10, "input_size": [1, 8, 8]}
        example = torch.from_numpy(inputs["grey"])
        hwbmpq.export.save_packed(net, f"{name}.safetensors", example_input=example, origin=origin)
        found[name] = answers(hwbmpq.load(f"{name}.safetensors", model=own_net()), inputs["grey"])
        assert np.array_equal(found[name], answers(net, inputs["grey"]))
    return found


def run_outputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    import hwbmpq

    return {
        "trained": answers(hwbmpq.load("trained", model=own_net()), inputs["grey"]),
        "calibrated": answers(hwbmpq.load("calibrated"), inputs["colour"]),
    }


def onnx_outputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    import hwbmpq

    folder, found = Path("trained"), {}
    for name in ("model.onnx", "model.int8.onnx", "model.int8-vnni.onnx"):
        found[name] = hwbmpq.export.OnnxNetwork(folder / name, threads=1)(inputs["grey"])
    qonnx = hwbmpq.export.QonnxNetwork((folder / "model.qonnx.onnx").read_bytes())
    return {**found, "model.qonnx.onnx": qonnx(inputs["grey"])}


def state_outputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict, per channel, and what the network computes at the widths in it and at others."""
    import hwbmpq

    net = prepared(inputs["grey"], per_channel=True)
    torch.save(net.state_dict(), "state.pt")
    found = {"state": answers(net, inputs["grey"])}
    hwbmpq.quant.assign(net, OTHER_WIDTHS)
    return {**found, "state at other widths": answers(net, inputs["grey"])}


def make_loop(inputs: Mapping[str, Any]) -> None:
    """A training loop of one's own, saved in the third of five epochs, and the weights and widths at its end."""
    import hwbmpq

    net = own_net()
    images, labels = torch.from_numpy(inputs["grey"]), torch.from_numpy(inputs["labels"])
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
    for epoch in range(5):
        for half in range(2):
            part = slice(4 * half, 4 * half + 4)
            loss = nn.functional.cross_entropy(net(images[part]), labels[part])
            loss.backward()  # type: ignore[no-untyped-call]
            allocator.step()
            optimizer.step()
            optimizer.zero_grad()
            if (epoch, half) == (2, 0):
                states = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "allocator": allocator.state_dict()}, "loop.pt")
        allocator.epoch_end()
    torch.save({"net": net.state_dict(), "allocator": allocator.state_dict()}, "loop_end.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
