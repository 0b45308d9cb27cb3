"""``pipeline.compress``: every method from a network and images to a run directory."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.allocate import InfeasibleBudget
from hwbmpq.data import load_data
from hwbmpq.data.images import ImageData
from hwbmpq.errors import HwbmpqError, RunStoppedError
from hwbmpq.pipeline import Compression, compress, make_allocator
from hwbmpq.quant import quantized_layers
from hwbmpq.registry import METHODS
from hwbmpq.search.decisions import Decision
from hwbmpq.search.methods import get_method
from hwbmpq.training.hooks import StepReport, TrainingHook
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings, resolve_settings
from hwbmpq.training.trainer import Trainer

ENDS = ("stem", "head")
FREE = ("first", "second", "third", "shortcut", "hidden")


class Residual(nn.Module):
    """A stem, a block with a downsample layer, dropout, a head."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.third = nn.Conv2d(12, 12, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 12, 1, stride=2)
        self.hidden = nn.Linear(12 * 16, 16)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.first(x))
        x = F.relu(self.third(F.relu(self.second(x))) + self.shortcut(x))
        return self.head(self.dropout(F.relu(self.hidden(x.flatten(1)))))


@pytest.fixture(scope="module")
def data() -> ImageData:
    """48 images to train on once 5 are held out for validation."""
    return load_data("fake", input_size=(3, 8, 8), classes=5, train_limit=53, test_limit=20)


def settings_for(**given: Any) -> RunSettings:
    return resolve_settings(
        {
            "model": "own",
            "target": "generic",
            "budgets": {"memory": "75%"},
            "data": "fake",
            "epochs": 3,
            "batch_size": 16,
            "warmup_epochs": 1,
            "interval_epochs": 1,
            **given,
        }
    )


def network(classes: int = 5) -> Residual:
    torch.manual_seed(0)
    return Residual(classes)


def run_in(folder: Path, settings: RunSettings) -> RunDirectory:
    run = RunDirectory(folder / "run").create()
    run.save_settings(settings, {})
    return run


OWN_BITS: dict[str, Any] = {"hpq": {"bits": [4]}, "ad": {}}


@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_runs_and_leaves_a_whole_run_directory(
    method: str, data: ImageData, tmp_path: Path
) -> None:
    settings = settings_for(method=method, **OWN_BITS.get(method, {"bits": [2, 4]}))
    run = run_in(tmp_path, settings)
    model = network()
    result = compress(model, data, settings, run=run)
    widths = {name: layer.precision for name, layer in quantized_layers(model)}

    assert len(result.progress.records) == 3
    assert result.evaluation.images == 20
    assert {"config.yaml", "allocation.json", "history.jsonl", "checkpoint.pt"} <= {
        p.name for p in run.path.iterdir()
    }
    assert run.load_settings() == settings
    told = run.load_allocation()
    assert (told["method"], told["test_accuracy"]) == (method, result.evaluation.accuracy)
    assert told["decisions"] == len(result.decisions)

    expected_decisions = {"bmpq": [1, 2], "fp32": [], "hpq": [0]}.get(method, [1])
    assert [decision.epoch for decision in result.decisions] == expected_decisions
    if method == "fp32":
        assert {str(precision) for precision in widths.values()} == {"W32A32"}
        assert result.plan is None
        return
    assert result.plan is not None
    last = result.decisions[-1]
    assert dict(last.after) == widths
    assert {name: widths[name].weight_bits for name in ENDS} == dict.fromkeys(ENDS, 16)
    free = {widths[name].weight_bits for name in FREE}
    assert free <= ({4} if method == "hpq" else set(range(2, 17)) if method == "ad" else {2, 4})
    assert widths["shortcut"] == widths["first"]  # tied: it feeds the downsample layer
    if get_method(method).keeps_budget:
        assert_within_budget(result, settings, data)
    assert_history_is_complete(run, result, method)


def assert_within_budget(result: Compression, settings: RunSettings, data: ImageData) -> None:
    space = make_allocator(network(), data, settings).space
    limit = Fraction(space.limits["memory"])
    # A norm of 8 channels and its counter, 65 biases, clipping points of 6 tensors.
    beside = 4 * 8 * 32 + 64 + 65 * 32 + 6 * 64
    for decision in result.decisions:
        costs = space.costs.tables["memory"].rows[0].costs
        total = beside + sum(Fraction(costs[layer][decision.after[layer]]) for layer in costs)
        assert total == decision.costs["memory"]
        assert total <= limit


def assert_history_is_complete(run: RunDirectory, result: Compression, method: str) -> None:
    lines = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    stored = [Decision.from_dict(line["decision"]) for line in lines if line["decision"]]
    made = [decision for decision in result.decisions if decision.epoch]
    assert stored == made
    for decision in made:
        content = json.loads(json.dumps(decision.to_dict(), allow_nan=False))
        assert Decision.from_dict(content) == decision
        assert decision.method == method
        assert set(decision.after) == set(decision.before) == {*ENDS, *FREE}
        assert set(decision.decided_by.scores) == {*ENDS, *FREE}
        assert {move.layer for move in decision.moves} == {
            name for name in decision.after if decision.after[name] != decision.before[name]
        }
        assert all(move.why for move in decision.moves)
        assert "memory" in decision.costs


def test_bmpq_learns_the_digits(tmp_path: Path) -> None:
    """8x8 images, {2, 4} bits: far from chance (a tenth) in a few epochs."""
    digits = load_data("digits", input_size=(3, 8, 8), train_limit=667, test_limit=200)
    settings = settings_for(data="digits", bits=[2, 4], epochs=6, batch_size=32, lr=0.05)
    result = compress(network(10), digits, settings)
    assert result.evaluation.accuracy > 0.6


@pytest.mark.parametrize("method", [m for m in METHODS.names() if get_method(m).keeps_budget])
def test_a_budget_that_cannot_be_met_is_found_before_the_first_step(method: str, data: ImageData) -> None:
    class NoStep(TrainingHook):
        def after_step(self, report: StepReport) -> None:
            raise AssertionError("trained")

    model = network()
    settings = settings_for(method=method, bits=[2, 4], budgets={"memory": "50bit"})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InfeasibleBudget, match="memory"):
        compress(model, data, settings, hooks=[NoStep()])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("warmup", "epochs"), [(3, 3), (5, 3)])
def test_a_warmup_that_fills_the_run_is_found_before_the_first_step(
    warmup: int, epochs: int, data: ImageData
) -> None:
    with pytest.raises(HwbmpqError, match="warm-up"):
        compress(network(), data, settings_for(bits=[2, 4], epochs=epochs, warmup_epochs=warmup))


def test_a_network_with_other_classes_is_refused(data: ImageData) -> None:
    with pytest.raises(HwbmpqError, match="7 outputs, but fake has 5 classes"):
        compress(network(7), data, settings_for())


def test_the_same_seed_gives_the_same_weights(data: ImageData) -> None:
    finals = []
    for seed in (0, 0, 1):
        model = network()
        compress(model, data, settings_for(bits=[2, 4], seed=seed))
        finals.append(model.state_dict())
    assert all(torch.equal(finals[0][name], value) for name, value in finals[1].items())
    assert not torch.equal(finals[0]["third.weight"], finals[2]["third.weight"])


def stop_at(epoch: int, step: int) -> tuple[TrainingHook, Any]:
    holder: list[Trainer] = []

    class Stop(TrainingHook):
        def after_step(self, report: StepReport) -> None:
            if (report.epoch, report.step) == (epoch, step):
                holder[0].ask_to_stop()

    return Stop(), holder.append


@pytest.mark.parametrize(("epoch", "step"), [(1, 2), (2, 3), (3, 1)])
def test_a_stopped_run_continues_to_the_same_result(
    epoch: int, step: int, data: ImageData, tmp_path: Path
) -> None:
    settings = settings_for(bits=[2, 4])
    whole = network()
    expected = compress(whole, data, settings)
    run = run_in(tmp_path, settings)
    hook, on_trainer = stop_at(epoch, step)
    with pytest.raises(RunStoppedError) as error:
        compress(network(), data, settings, run=run, hooks=[hook], on_trainer=on_trainer)
    assert f"--resume {run.path}" in error.value.hint
    assert not (run.path / "allocation.json").exists()
    torch.manual_seed(77)
    model = Residual()  # other weights: all must come from the checkpoint
    state, problem = run.load_checkpoint()
    found = compress(model, data, run.load_settings(), run=run, state=state)
    assert problem == ""
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert found.evaluation == expected.evaluation
    assert [d.after for d in found.decisions] == [d.after for d in expected.decisions]
    assert [d.sensitivities for d in found.decisions] == [d.sensitivities for d in expected.decisions]


def test_without_training_a_network_is_calibrated_and_within_budget(data: ImageData, tmp_path: Path) -> None:
    settings = settings_for(
        bits=[2, 4], epochs=0, warmup_epochs=None, interval_epochs=None, calibration_images=32
    )
    run = run_in(tmp_path, settings)
    model = network()
    result = compress(model, data, settings, run=run)
    assert result.progress.float_accuracy is not None
    assert [decision.epoch for decision in result.decisions] == [0]
    assert_within_budget(result, settings, data)
    assert run.load_checkpoint()[0]["model"].keys() == model.state_dict().keys()
