"""The training loop: what it does in order, how it fails, and that it goes on bit for bit."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hwbmpq.data import load_data
from hwbmpq.data.batches import TrainingBatches
from hwbmpq.data.images import ImageData
from hwbmpq.errors import HwbmpqError, NonFiniteError, RunStoppedError
from hwbmpq.quant import quantized_layers
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.tasks import get_task
from hwbmpq.training.evaluation import Evaluation, evaluate
from hwbmpq.training.hooks import StepReport, TrainingHook
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings, resolve_settings
from hwbmpq.training.trainer import Trainer, learning_rate

CLASSES = 5
TRAIN_IMAGES, TEST_IMAGES = 48, 20


@pytest.fixture(scope="module")
def data() -> ImageData:
    return load_data(
        "fake", input_size=(3, 8, 8), classes=CLASSES, train_limit=TRAIN_IMAGES, test_limit=TEST_IMAGES
    )


def network(*, dropout: float = 0.0, norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(6 * 4 * 4, 12),
        nn.ReLU(),
        nn.Linear(12, CLASSES),
    )


def settings_for(**given: Any) -> RunSettings:
    """Six steps an epoch."""
    return resolve_settings(
        {
            "model": "own",
            "target": "generic",
            "budgets": {"memory": "85%"},
            "bits": [2, 4],
            "data": "fake",
            "epochs": 4,
            "warmup_epochs": 1,
            "interval_epochs": 1,
            "batch_size": 8,
            "lr": 0.05,
            "augment": "flip-crop",
            **given,
        }
    )


def trainer_for(
    data: ImageData,
    settings: RunSettings,
    *,
    model: nn.Module | None = None,
    batches: Any = None,
    judge: Callable[[nn.Module], Evaluation] | None = None,
    **options: Any,
) -> Trainer:
    model = network() if model is None else model
    torch.manual_seed(settings.seed)
    allocator = BitAllocator(
        model,
        next(data.train.batches(1))[0],
        target=settings.target,
        budgets=settings.budgets,
        bits=settings.bits,
        epochs=settings.epochs,
        warmup_epochs=settings.warmup_epochs,
        interval_epochs=settings.interval_epochs,
        method=settings.method,
        calibration=lambda: data.train.batches(8),
    )
    batches = batches or TrainingBatches(
        data.train, batch_size=settings.batch_size, augment=settings.augment or "none", seed=settings.seed
    )
    judge = judge or (lambda model: evaluate(model, data.test.batches(10)))
    return Trainer(model, allocator, settings, batches, judge, **options)


def same(left: Any, right: Any) -> bool:
    """Equal in every bit, whatever it is made of."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and torch.equal(left, right) and left.dtype == right.dtype
    if isinstance(left, dict):
        keys = left.keys() - {"seconds"}
        return (
            isinstance(right, dict)
            and keys == right.keys() - {"seconds"}
            and all(same(left[k], right[k]) for k in keys)
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


class Recorder(TrainingHook):
    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.epochs: list[dict[str, Any]] = []
        self.decisions: list[Any] = []
        self.trainer: Trainer | None = None

    def on_start(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def after_step(self, report: StepReport) -> None:
        self.steps.append(report)

    def after_epoch(self, record: Any, decision: Any) -> None:
        self.epochs.append(record)
        self.decisions.append(decision)


# the course of a run


def test_hooks_are_told_every_step_and_epoch(data: ImageData) -> None:
    recorder = Recorder()
    trainer = trainer_for(data, settings_for(), hooks=[recorder])
    trainer.run()
    assert recorder.trainer is trainer
    assert [(r.epoch, r.step, r.steps) for r in recorder.steps] == [
        (epoch, step, 6) for epoch in range(1, 5) for step in range(1, 7)
    ]
    assert [record["epoch"] for record in recorder.epochs] == [1, 2, 3, 4]
    assert [decision is not None for decision in recorder.decisions] == [True, True, True, False]


@pytest.mark.parametrize("schedule", ["step", "cosine", "onecycle", "constant"])
def test_each_step_has_the_rate_of_its_share_of_the_run(schedule: str, data: ImageData) -> None:
    recorder, settings = Recorder(), settings_for(lr_schedule=schedule, epochs=5)
    trainer_for(data, settings, hooks=[recorder]).run()
    expected = [learning_rate(settings, number / 30) for number in range(30)]
    assert [report.learning_rate for report in recorder.steps] == expected


def test_warmup_is_at_the_widest_and_every_epoch_says_its_widths(data: ImageData) -> None:
    trainer = trainer_for(data, settings_for(epochs=4, warmup_epochs=2))
    progress = trainer.run()
    free = ("3", "7")
    for record in progress.records[:2]:
        assert {record["bits"][name] for name in free} == {"W4A8"}
    assert any(progress.records[2]["bits"][name] == "W2A8" for name in free)
    assert progress.records[1]["decision"]["after"] == progress.records[2]["bits"]


def test_records_count_the_training_images(data: ImageData) -> None:
    recorder = Recorder()
    progress = trainer_for(data, settings_for(), hooks=[recorder]).run()
    last_step = recorder.steps[5]
    assert progress.records[0]["loss"] == last_step.loss
    assert progress.records[0]["train_accuracy"] == last_step.accuracy
    assert (last_step.accuracy * TRAIN_IMAGES) % 1 == pytest.approx(0, abs=1e-9)


def test_the_best_epoch_is_among_those_at_decided_widths(data: ImageData, tmp_path: Path) -> None:
    """Accuracies are given; the first two epochs are the warm-up and do not count."""
    answers = iter([0.9, 0.8, 0.3, 0.5, 0.5, 0.4])

    def judge(model: nn.Module) -> Evaluation:
        return Evaluation(value=next(answers), loss=1.0, images=TEST_IMAGES)

    run = RunDirectory(tmp_path / "run").create()
    progress = trainer_for(data, settings_for(epochs=6, warmup_epochs=2), judge=judge, run=run).run()
    assert [record["is_best"] for record in progress.records] == [False, False, True, True, False, False]
    assert (progress.best_accuracy, progress.best_epoch) == (0.5, 4)
    best = run.load_checkpoint(best=True)[0]
    assert best["epoch"] == 4
    assert best["bits"] == progress.records[3]["bits"]


def test_in_float_every_epoch_can_be_the_best(data: ImageData) -> None:
    answers = iter([0.9, 0.8, 0.3, 0.5])
    trainer = trainer_for(
        data,
        settings_for(method="fp32"),
        judge=lambda model: Evaluation(value=next(answers), loss=1.0, images=TEST_IMAGES),
    )
    assert trainer.run().best_epoch == 1


def test_the_run_leaves_one_line_of_history_an_epoch(data: ImageData, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run").create()
    progress = trainer_for(data, settings_for(), run=run).run()
    lines = (run.path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(json.dumps(progress.records))
    assert {
        "epoch",
        "loss",
        "train_accuracy",
        "test_accuracy",
        "test_loss",
        "learning_rate",
        "bits",
        "decision",
    } <= set(json.loads(lines[0]))


def test_accumulated_micro_batches_are_one_batch(data: ImageData) -> None:
    """Without batch norm and at rest α, two batches of 8 give the step of one of 16."""
    finals = []
    for batch_size, accumulate in ((16, 1), (8, 2)):
        settings = settings_for(
            batch_size=batch_size, accumulate=accumulate, augment="none", method="fp32", epochs=2
        )
        trainer = trainer_for(data, settings, model=network(norm=False))
        assert trainer.steps_per_epoch == 3
        trainer.run()
        finals.append(trainer.model.state_dict())
    for name, value in finals[0].items():
        assert torch.allclose(value.float(), finals[1][name].float(), rtol=1e-4, atol=1e-6), name


def test_left_over_micro_batches_wait_for_the_next_epoch(data: ImageData) -> None:
    trainer = trainer_for(data, settings_for(accumulate=4))
    assert trainer.steps_per_epoch == 1
    progress = trainer.run()
    assert len(progress.records) == 4


def test_an_epoch_shorter_than_one_accumulated_step_is_an_error(data: ImageData) -> None:
    with pytest.raises(
        HwbmpqError, match="an epoch of 6 batches is shorter than one step, which accumulates 10"
    ):
        trainer_for(data, settings_for(accumulate=10, method="hpq", bits=[4]))


class AfterFirstStep(TrainingHook):
    """Remembers the sensitivities, and how far the weights have moved."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.moved = 0.0
        self.sensitivities: dict[str, float] = {}
        self._trainer: Trainer | None = None

    def on_start(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def after_step(self, report: StepReport) -> None:
        assert self._trainer is not None
        if not self.sensitivities:
            self.sensitivities = dict(self._trainer.allocator.sensitivities)  # type: ignore[attr-defined]
            now = dict(self._trainer.model.named_parameters())
            squares = sum(float((now[n].detach() - w).square().sum()) for n, w in self._weights.items())
            self.moved = math.sqrt(squares)


def test_gradients_are_clipped_after_the_allocator_has_read_them(data: ImageData) -> None:
    """With plain SGD no step moves the weights farther than the rate times the norm."""
    found = []
    for clip in (None, 1e-4):
        settings = settings_for(clip_norm=clip, momentum=0, weight_decay=0, alpha_weight_decay=0, epochs=2)
        model = network()
        watch = AfterFirstStep(model)
        trainer_for(data, settings, model=model, hooks=[watch]).run()
        found.append(watch)
    free, clipped = found
    assert free.moved > 100 * 0.05 * 1e-4
    assert clipped.moved == pytest.approx(0.05 * 1e-4, rel=0.01)
    assert clipped.sensitivities == pytest.approx(free.sensitivities, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_trains_weights_and_clipping_points(optimizer: str, data: ImageData) -> None:
    trainer = trainer_for(data, settings_for(optimizer=optimizer, lr=0.01, epochs=6, weight_decay=0.0))
    progress = trainer.run()
    assert progress.records[-1]["loss"] < progress.records[0]["loss"]
    alphas = [
        layer.input_quantizer.alpha for name, layer in quantized_layers(trainer.model) if name in ("3", "7")
    ]
    state = trainer._optimizer.state
    key = "momentum_buffer" if optimizer == "sgd" else "exp_avg"
    assert all(float(state[alpha][key].abs()) > 0 for alpha in alphas)


def test_training_under_autocast_works_on_the_cpu(data: ImageData) -> None:
    progress = trainer_for(data, settings_for(amp=True)).run()
    assert all(math.isfinite(record["loss"]) for record in progress.records)


def test_evaluation_changes_nothing(data: ImageData) -> None:
    """A run that is judged by its images ends as one that is not."""
    finals = []
    for judge in (None, lambda model: Evaluation(value=0.5, loss=1.0, images=1)):
        trainer = trainer_for(data, settings_for(), model=network(dropout=0.3), judge=judge)
        trainer.run()
        finals.append(trainer.model.state_dict())
    assert same(finals[0], finals[1])


def test_test_images_have_no_part_in_activation_densities(data: ImageData) -> None:
    """A method must not decide by what it is judged on."""
    densities = []
    for judge in (None, lambda model: Evaluation(value=0.5, loss=1.0, images=1)):
        trainer = trainer_for(data, settings_for(method="ad", bits=[2, 4, 8]), judge=judge)
        trainer.run()
        densities.append(trainer.allocator.history[0].decided_by.scores)  # type: ignore[attr-defined]
    assert densities[0] == densities[1]


# what goes wrong


class Poisoned:
    """Batches of which one holds values that are no numbers, or is far too large."""

    def __init__(self, batches: TrainingBatches, epoch: int, step: int, value: float) -> None:
        self._batches, self._at, self._value = batches, (epoch, step), value

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for step, (images, labels) in enumerate(self._batches.epoch(number, start), start + 1):
            if (number + 1, step) == self._at:
                images = images.clone()
                images[0, 0, 0, 0] = self._value
            yield images, labels


def poisoned(data: ImageData, settings: RunSettings, epoch: int, step: int, value: float) -> Poisoned:
    return Poisoned(TrainingBatches(data.train, batch_size=settings.batch_size), epoch, step, value)


@pytest.mark.parametrize("method", ["bmpq", "fp32"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_stop_the_run_and_name_the_step(
    value: float, method: str, data: ImageData, tmp_path: Path
) -> None:
    settings = settings_for(method=method)
    run = RunDirectory(tmp_path / "run").create()
    trainer = trainer_for(data, settings, batches=poisoned(data, settings, 2, 3, value), run=run)
    with pytest.raises(NonFiniteError, match=r"^epoch 2, step 3: .*state after epoch 1 is kept") as error:
        trainer.run()
    assert "--lr" in error.value.hint
    fresh = trainer_for(data, settings, run=run)
    fresh.load_state_dict(run.load_checkpoint()[0])
    assert fresh.progress.epoch == 1
    assert all(torch.isfinite(p).all() for p in fresh.model.parameters())
    assert len(fresh.run().records) == 4


def test_a_bad_first_epoch_promises_no_state(data: ImageData, tmp_path: Path) -> None:
    settings = settings_for()
    run = RunDirectory(tmp_path / "run").create()
    trainer = trainer_for(data, settings, batches=poisoned(data, settings, 1, 2, float("nan")), run=run)
    with pytest.raises(NonFiniteError, match=r"^epoch 1, step 2: ") as error:
        trainer.run()
    assert "kept" not in str(error.value)


@pytest.mark.parametrize(
    ("is_broken", "hint"), [(False, "value() of a task of your own"), (True, "lower the learning rate")]
)
def test_a_metric_that_is_not_a_number_is_told_what_helps(
    is_broken: bool, hint: str, data: ImageData
) -> None:
    class NotANumber(type(get_task("classification"))):  # type: ignore[misc]
        def value(self, measured: Any) -> float:
            return math.nan

    def judge(model: nn.Module) -> Evaluation:
        if is_broken:
            with torch.no_grad():
                model[-1].bias.fill_(math.nan)  # type: ignore[index, union-attr, operator]
        return evaluate(model, data.test.batches(10), NotANumber())

    with pytest.raises(NonFiniteError, match=r"^epoch 1, step \d+: the accuracy is nan") as error:
        trainer_for(data, settings_for(), judge=judge).run()
    assert hint in error.value.hint
    assert is_broken or "learning rate" not in error.value.hint


@pytest.mark.parametrize("method", ["bmpq", "fp32"])
def test_a_run_that_diverges_says_so(method: str, data: ImageData) -> None:
    with pytest.raises(NonFiniteError, match=r"^epoch 1, step [1-6]: "):
        trainer_for(data, settings_for(method=method, lr=1e38, lr_schedule="constant")).run()


@pytest.mark.parametrize("method", ["bmpq", "fp32"])
def test_divergence_in_the_last_step_of_an_epoch_keeps_the_good_state(
    method: str, data: ImageData, tmp_path: Path
) -> None:
    """The weights are no numbers any more when the epoch is evaluated."""

    class Explode(TrainingHook):
        def __init__(self, model: nn.Module) -> None:
            self._model = model

        def after_step(self, report: StepReport) -> None:
            if (report.epoch, report.step) == (2, report.steps):
                with torch.no_grad():
                    self._model[3].weight.fill_(float("nan"))

    settings = settings_for(method=method)
    run = RunDirectory(tmp_path / "run").create()
    model = network()
    trainer = trainer_for(data, settings, model=model, run=run, hooks=[Explode(model)])
    with pytest.raises(NonFiniteError, match="epoch 2"):
        trainer.run()
    fresh = trainer_for(data, settings, run=run)
    fresh.load_state_dict(run.load_checkpoint()[0])
    assert all(torch.isfinite(p).all() for p in fresh.model.parameters())


# stopped and continued


class StopAt(TrainingHook):
    """Asks the trainer to stop, as a signal handler would."""

    def __init__(self, epoch: int, step: int) -> None:
        self._at = (epoch, step)
        self._trainer: Trainer | None = None

    def on_start(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def after_step(self, report: StepReport) -> None:
        if (report.epoch, report.step) == self._at:
            assert self._trainer is not None
            self._trainer.ask_to_stop()


class KilledError(BaseException):
    """The process ends here."""


class KillAfter(TrainingHook):
    def __init__(self, epoch: int, step: int = 0) -> None:
        self._at = (epoch, step)

    def after_step(self, report: StepReport) -> None:
        if (report.epoch, report.step) == self._at:
            raise KilledError

    def after_epoch(self, record: Any, decision: Any) -> None:
        if (record["epoch"], 0) == self._at:
            raise KilledError


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adam, accumulated, clipped": {"optimizer": "adam", "lr": 0.01, "accumulate": 2, "clip_norm": 0.5},
    "density": {"method": "ad", "bits": [2, 4, 8], "warmup_epochs": 2},
    "hessian": {"method": "hawq", "warmup_epochs": 2, "interval_epochs": 1},
    "one cycle, long interval": {
        "lr_schedule": "onecycle",
        "epochs": 5,
        "warmup_epochs": 2,
        "interval_epochs": 2,
    },
    "float": {"method": "fp32"},
}


_FINISHED: dict[str, Trainer] = {}


def finished(data: ImageData, settings: RunSettings) -> Trainer:
    """The uninterrupted run; several tests compare with it."""
    key = settings.model_dump_json()
    if key not in _FINISHED:
        _FINISHED[key] = trainer_for(data, settings, model=network(dropout=0.3))
        _FINISHED[key].run()
    return _FINISHED[key]


def resumed(data: ImageData, settings: RunSettings, run: RunDirectory) -> Trainer:
    """In a new object; the network begins as another one, the generator somewhere else."""
    model = network(dropout=0.3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    trainer = trainer_for(data, settings, model=model, run=run)
    torch.manual_seed(999)
    trainer.load_state_dict(run.load_checkpoint()[0])
    trainer.run()
    return trainer


def assert_same_end(found: Trainer, expected: Trainer) -> None:
    left, right = found.state_dict(), expected.state_dict()
    for part in ("model", "optimizer", "allocator", "random"):
        assert same(left[part], right[part]), part
    assert same(found.progress.records, expected.progress.records)
    assert same(vars(found.progress), vars(expected.progress))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_stopped_at_an_epochs_end_ends_in_the_same_bits(
    variant: str, data: ImageData, tmp_path: Path
) -> None:
    settings = settings_for(**VARIANTS[variant])
    expected = finished(data, settings)
    for epoch in (1, settings.epochs - 1):
        run = RunDirectory(tmp_path / f"{epoch}").create()
        trainer = trainer_for(data, settings, model=network(dropout=0.3), run=run, hooks=[KillAfter(epoch)])
        with pytest.raises(KilledError):
            trainer.run()
        assert_same_end(resumed(data, settings, run), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_stopped_within_an_epoch_ends_in_the_same_bits(
    variant: str, data: ImageData, tmp_path: Path
) -> None:
    """After its first step, after the last step of an epoch, in the middle of a later one."""
    settings = settings_for(**VARIANTS[variant])
    expected = finished(data, settings)
    last = expected.steps_per_epoch
    for epoch, step in ((1, 1), (2, last), (3, 2)):
        run = RunDirectory(tmp_path / f"{epoch}-{step}").create()
        trainer = trainer_for(
            data, settings, model=network(dropout=0.3), run=run, hooks=[StopAt(epoch, step)]
        )
        with pytest.raises(RunStoppedError, match=f"in epoch {epoch} after step {step} of {last}"):
            trainer.run()
        assert_same_end(resumed(data, settings, run), expected)


def test_a_run_stopped_again_and_again_ends_in_the_same_bits(data: ImageData, tmp_path: Path) -> None:
    """After every single step."""
    settings = settings_for(epochs=3)
    expected = finished(data, settings)
    run = RunDirectory(tmp_path / "run").create()
    for _ in range(30):
        trainer = trainer_for(data, settings, model=network(dropout=0.3), run=run)
        if run.path.joinpath("checkpoint.pt").exists():
            trainer.load_state_dict(run.load_checkpoint()[0])
        trainer.ask_to_stop()
        try:
            trainer.run()
        except RunStoppedError:
            continue
        break
    assert_same_end(trainer, expected)


def test_checkpoints_within_an_epoch_lose_only_the_steps_since(data: ImageData, tmp_path: Path) -> None:
    """Killed, not stopped: with a checkpoint after every step."""
    settings = settings_for(checkpoint_minutes=1e-9)
    expected = finished(data, settings)
    run = RunDirectory(tmp_path / "run").create()
    trainer = trainer_for(data, settings, model=network(dropout=0.3), run=run, hooks=[KillAfter(3, 4)])
    with pytest.raises(KilledError):
        trainer.run()
    progress = run.load_checkpoint()[0]["progress"]
    assert (progress["epoch"], progress["batch"]) == (2, 3)
    assert_same_end(resumed(data, settings, run), expected)


def test_checkpoints_are_written_in_time_and_at_the_end_of_epochs_only(
    data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    run = RunDirectory(tmp_path / "run").create()
    monkeypatch.setattr(
        RunDirectory,
        "save_checkpoint",
        lambda self, content: saved.append((content["progress"]["epoch"], content["progress"]["batch"])),
    )
    trainer_for(data, settings_for(epochs=3), run=run).run()
    assert saved == [(1, 0), (2, 0), (3, 0)]


def test_a_finished_run_has_nothing_to_continue(data: ImageData, tmp_path: Path) -> None:
    settings = settings_for()
    run = RunDirectory(tmp_path / "run").create()
    first = trainer_for(data, settings, model=network(dropout=0.3), run=run)
    first.run()
    assert_same_end(resumed(data, settings, run), first)


def test_a_checkpoint_is_plain_values_and_tensors(data: ImageData, tmp_path: Path) -> None:
    """``load_checkpoint`` runs no code from it."""
    run = RunDirectory(tmp_path / "run").create()
    trainer = trainer_for(data, settings_for(), run=run)
    trainer.run()
    assert same(run.load_checkpoint()[0]["model"], dict(trainer.model.state_dict()))


@pytest.mark.parametrize(("most", "epochs", "steps"), [(4, 4, 1), (9, 4, 2), (100, 4, 6)])
def test_a_run_of_few_steps_has_its_epochs_all_the_same(
    data: ImageData, most: int, epochs: int, steps: int
) -> None:
    trainer = trainer_for(data, settings_for(max_steps=most))
    assert trainer.steps_per_epoch == steps
    assert len(trainer.run().records) == epochs
