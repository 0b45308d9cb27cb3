"""Regression, segmentation, several inputs and dicts through the whole of ``compress``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import hwbmpq
from hwbmpq.data import from_loaders
from hwbmpq.export.deployment import benchmark, evaluate_onnx, export_onnx
from hwbmpq.pipeline import compress, restore, summary
from hwbmpq.report import report_on_run
from hwbmpq.report.html import write_page
from hwbmpq.tasks import Task
from hwbmpq.training import RunDirectory, RunSettings, evaluate, resolve_settings


class Signals(Dataset[Any]):
    """Noise of one channel; the target is the mean of its first half."""

    def __init__(self, count: int, seed: int) -> None:
        self.signals = torch.randn(count, 1, 32, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> Any:
        signal = self.signals[index]
        return signal, signal[0, :16].mean()


class Masks(Signals):
    """Images of one channel; the mask says which pixels are bright."""

    def __getitem__(self, index: int) -> Any:
        image = self.signals[index].reshape(1, 4, 8).repeat(1, 2, 1)
        return image, (image[0] > 0.5).long()


class Pairs(Signals):
    """Two inputs by name, and targets by name."""

    def __getitem__(self, index: int) -> Any:
        signal = self.signals[index, 0]
        inputs = {"side": signal[16:20], "signal": signal[:16]}
        return inputs, {"mean": signal[:16].mean(), "side": signal[16:20].sum()}


class Regressor(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 1),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.up, self.merge = nn.ConvTranspose2d(12, 8, 2, stride=2), nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = F.relu(self.down1(x))
        up = F.relu(self.up(F.relu(self.down2(first))))
        return {"out": self.head(F.relu(self.merge(torch.cat([first, up], 1))))}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 12), nn.Linear(4, 12)
        self.middle, self.mean, self.side = nn.Linear(12, 12), nn.Linear(12, 1), nn.Linear(12, 1)

    def forward(self, signal: Tensor, side: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x = F.relu(self.middle(F.relu(self.a(signal)) + F.relu(self.b(side)) * scale))
        return {"mean": self.mean(x).squeeze(1), "side": self.side(x).squeeze(1)}


class BothErrors(Task):
    metric, higher_is_better = "worst error", False

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return sum((F.mse_loss(outputs[name], targets[name]) for name in targets), torch.zeros(()))

    def measure(self, outputs: Any, targets: Any) -> Any:
        return max(float((outputs[name] - targets[name]).abs().max()) for name in targets)

    def value(self, measured: Any) -> float:
        return max(measured)


class Watched:
    """A loader that counts how often it is gone through."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.passes = loader, 0
        self.dataset = loader.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self.loader)


CASES: dict[str, tuple[Any, Any, Task | None, str]] = {
    "regression": (Signals, Regressor, None, "mean absolute error"),
    "segmentation": (Masks, UNet, None, "mean IoU"),
    "two inputs": (Pairs, TwoInputs, BothErrors(), "worst error"),
}


def settings_for(case: str, **given: Any) -> RunSettings:
    base = {"model": "own", "target": "generic", "epochs": 3, "bits": (2, 4)}
    task = {} if CASES[case][2] else {"task": case}
    return resolve_settings({**base, "lr": 0.05, "device": "cpu", **task, **given})


def made(case: str, tmp_path: Path, **given: Any) -> Any:
    """A run of a case: its result, network, data, settings and folder."""
    data_set, network_of, task, _ = CASES[case]
    test = Watched(DataLoader(data_set(24, 1), batch_size=16))
    data = from_loaders(DataLoader(data_set(80, 0), batch_size=16, shuffle=False), test)
    settings = settings_for(case, **given)
    run = RunDirectory(tmp_path / "run").create()
    run.save_settings(settings, {})
    torch.manual_seed(0)
    network = network_of()
    result = compress(network, data, settings, run=run, task=task)
    return result, network, data, settings, run, test


@pytest.mark.parametrize("case", CASES)
def test_a_run_reports_its_own_metric_and_looks_at_test_images_once(case: str, tmp_path: Path) -> None:
    result, network, data, settings, run, test = made(case, tmp_path)
    metric = CASES[case][3]
    assert test.passes == 1
    assert (result.metric.name, result.compared_on, result.evaluation.images) == (metric, "validation", 24)
    history = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    values = [record["validation_metric"] for record in history]
    assert not any("accuracy" in key or key.startswith("test") for record in history for key in record)
    settled = values[1:]  # after the warm-up of one epoch
    chosen = max(settled) if result.metric.higher_is_better else min(settled)
    told = summary(result, settings)
    assert told["best"] == {"validation_metric": chosen, "epoch": values.index(chosen, 1) + 1}
    task = CASES[case][2] or settings.task
    assert evaluate(network, data.test.batches(100), task).value == pytest.approx(told["test_metric"])
    assert told["metric"]["name"] == metric
    assert told["task"] == ("BothErrors" if case == "two inputs" else case)


@pytest.mark.parametrize("case", CASES)
def test_reports_and_the_page_name_the_metric(case: str, tmp_path: Path) -> None:
    result, *_, run, _ = made(case, tmp_path)
    metric = CASES[case][3]
    report = report_on_run(run.path)
    (headline,) = (one for one in report.headlines if one.is_metric)
    assert headline.name == f"test {metric}"
    assert headline.text(headline.value) in (
        f"{result.evaluation.value:.4g}",
        f"{100 * result.evaluation.value:.2f} %",
    )
    assert {epoch.part for epoch in report.epochs} == {"validation"}
    page = (run.path / "report.html").read_text()
    assert f"test {metric}" in page
    assert f"validation {metric}" in page
    assert "accuracy" not in page.replace("min_accuracy", "")  # the name of a setting
    write_page([report, report], tmp_path / "two.html")


@pytest.mark.parametrize("case", CASES)
def test_the_packed_file_and_the_checkpoint_give_the_network_back(case: str, tmp_path: Path) -> None:
    result, _network, data, settings, run, _ = made(case, tmp_path)
    task = CASES[case][2] or settings.task
    loaded = hwbmpq.load(run.packed_file, model=CASES[case][1]())
    assert evaluate(loaded, data.test.batches(100), task).value == result.evaluation.value
    if CASES[case][2] is None:
        restored = restore(CASES[case][1](), data, settings, run.load_checkpoint()[0])
        assert evaluate(restored, data.test.batches(100), task).value == result.evaluation.value


@pytest.mark.parametrize("form", ["qdq", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_onnx_files_give_the_answers_and_no_classes_are_compared(
    case: str, form: Any, tmp_path: Path
) -> None:
    result, network, data, settings, *_ = made(case, tmp_path)
    file, task = tmp_path / "model.onnx", CASES[case][2]
    found = export_onnx(network, data, file, settings=settings, form=form, task=task)
    assert found.agreement is not None
    assert found.agreement.top1_agreement is None
    assert found.agreement.inputs == 32 - 8  # all test samples
    graph = hwbmpq.export.OnnxNetwork(found.path)
    assert graph.input_names == (("signal", "side") if case == "two inputs" else ("input",))
    again = evaluate_onnx(graph, data, batch_size=10, task=task or settings.task, original=network)
    assert again.value == pytest.approx(result.evaluation.value, rel=0.05, abs=0.02)


def test_a_network_with_two_inputs_is_timed(tmp_path: Path) -> None:
    _, network, data, *_ = made("two inputs", tmp_path)
    timings = benchmark(network, data, batch=3, rounds=1)
    assert {timing.batch for timing in timings.values()} == {3}


@pytest.mark.parametrize("sensitivity", ["enbg", "divergence", "hessian_trace"])
@pytest.mark.parametrize("case", CASES)
def test_without_training_no_images_are_held_out(case: str, sensitivity: str, tmp_path: Path) -> None:
    result, *_, run, _ = made(case, tmp_path, epochs=0, sensitivity=sensitivity)
    assert result.compared_on == "test"
    assert result.progress.float_accuracy is not None
    told = json.loads((run.path / "allocation.json").read_text())
    assert told["test_metric"] == result.evaluation.value
    assert told["float_metric"] == result.progress.float_accuracy


def test_hessian_traces_use_the_loss_of_the_task(tmp_path: Path) -> None:
    result, *_ = made("two inputs", tmp_path, method="hawq")
    assert result.decisions[0].decided_by.method == "hessian_trace"


def test_a_task_that_does_not_fit_the_network_is_refused_before_training(tmp_path: Path) -> None:
    data = from_loaders(DataLoader(Signals(8, 0), batch_size=4), DataLoader(Signals(8, 1), batch_size=4))
    for task, message in (("segmentation", "needs scores"), ("classification", "how many classes")):
        settings = settings_for("regression", task=task)
        with pytest.raises(hwbmpq.HwbmpqError, match=message):
            compress(Regressor(), data, settings)
