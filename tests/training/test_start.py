"""Training that starts where calibration ends: the better is kept, the teacher is heard, a stopped run goes on as it would have."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq import pipeline
from hwbmpq.data import load_data
from hwbmpq.data.inputs import ModelInputs
from hwbmpq.errors import HwbmpqError, RunStoppedError
from hwbmpq.quant import quantized_layers
from hwbmpq.training import RunDirectory, RunSettings, TrainingHook, resolve_settings
from hwbmpq.training.distillation import Teacher
from hwbmpq.training.evaluation import Evaluation
from hwbmpq.training.settings import read_settings
from hwbmpq.training.start import float_weights_of, restore_fractions

DATA = load_data("digits", input_size=(3, 32, 32), train_limit=192, test_limit=64)


def network() -> nn.Module:
    return hwbmpq.models.load_model("hwbmpq:resnet8", num_classes=10, seed=0).network


def settings(**given: Any) -> RunSettings:
    said = {"model": "hwbmpq:resnet8", "target": "mpic", "weights": "given", "epochs": 2, "batch_size": 32}
    return resolve_settings({**said, "calibration_images": 32, **given})


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_given_weights_make_the_defaults_and_the_paper_s_recipes_keep_theirs() -> None:
    found = settings()
    assert (found.quantizer, found.start, found.distill) == ("learned", "calibrated", 1.0)
    assert found.alpha_weight_decay == 0
    scratch = resolve_settings({"model": "hwbmpq:resnet8", "target": "mpic"})
    assert (scratch.quantizer, scratch.start, scratch.distill) == ("paper", "widest", 0.0)
    recipe = resolve_settings({"weights": "given"}, recipe="bmpq-cifar10-resnet18")
    assert (recipe.quantizer, recipe.start, recipe.distill, recipe.settle) == ("paper", "widest", 0.0, 0.0)
    assert (recipe.weight_decay, recipe.per_channel, recipe.objective) == (5e-4, False, "linear")


@pytest.mark.parametrize(("trained", "keeps"), [(0.5, True), (0.95, False)])
def test_the_run_ends_with_the_better_network(
    trained: float, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.9, trained, trained])
    monkeypatch.setattr(
        "hwbmpq.training.trainer.Trainer._checked_evaluation",
        lambda self: Evaluation(value=next(values), loss=1.0, images=64),
    )
    calibrated: list[dict[str, torch.Tensor]] = []

    class Look(TrainingHook):
        def on_start(self, trainer: Any) -> None:
            calibrated.append(weights_of(trainer.model))

    model = network()
    result = pipeline.compress(
        model, DATA, settings(interval_epochs=1), run=RunDirectory(tmp_path / "run").create(), hooks=[Look()]
    )
    assert result.progress.calibrated == 0.9
    assert result.progress.keeps_calibrated is keeps
    assert same(weights_of(model), calibrated[0]) is keeps
    if keeps:
        assert len(result.decisions) == 1
        state, _ = RunDirectory(tmp_path / "run").load_checkpoint()
        assert same(state["model"], calibrated[0])
    packed = hwbmpq.load(tmp_path / "run", network())
    images, _ = next(iter(DATA.test.batches(16)))
    assert torch.equal(packed(images), model.eval()(images))
    content = pipeline.summary(result, settings())
    assert content["calibrated"] == {"validation_accuracy": 0.9, "is_kept": keeps}


@pytest.mark.parametrize("quantizer", ["paper", "learned"])
def test_a_stopped_run_goes_on_bit_for_bit(quantizer: str, tmp_path: Path) -> None:
    whole, stopped = network(), network()
    given = settings(quantizer=quantizer)
    pipeline.compress(whole, DATA, given)

    class Stop(TrainingHook):
        def after_step(self, report: Any) -> None:
            if (report.epoch, report.step) == (2, 1):
                trainers[0].ask_to_stop()

    trainers: list[Any] = []
    run = RunDirectory(tmp_path / "run").create()
    with pytest.raises(RunStoppedError):
        pipeline.compress(stopped, DATA, given, run=run, hooks=[Stop()], on_trainer=trainers.append)
    state, _ = run.load_checkpoint()
    resumed = hwbmpq.models.load_model("hwbmpq:resnet8", num_classes=10, seed=1).network  # other weights
    pipeline.compress(resumed, DATA, given, run=run, state=state)
    assert same(weights_of(whole), weights_of(resumed))


def test_fractions_change_weights_but_not_what_is_computed() -> None:
    model = network()
    images, _ = next(iter(DATA.train.batches(16)))
    layers = hwbmpq.describe(model, images[:1])
    hwbmpq.quant.prepare(model, layers, precision=(2, 8), quantizer="learned", per_channel=True)
    before = float_weights_of(model)
    hwbmpq.training.ptq.run.post_training(model, [images])
    rounded = weights_of(model)
    answers = model.eval()(images)
    restore_fractions(model, before)
    assert torch.equal(model(images), answers)
    inner = dict(quantized_layers(model))["layer2.0.conv1"]
    moved = inner.weight.detach()
    was, exact = rounded["layer2.0.conv1.weight"], before["layer2.0.conv1"]
    assert (moved - exact).abs().sum() < 0.8 * (was - exact).abs().sum()


def test_frozen_norms_keep_their_statistics_and_train_the_rest() -> None:
    model = network()
    before = weights_of(model)
    pipeline.compress(model, DATA, settings(norms="frozen", epochs=1, validation=0))
    after = weights_of(model)
    assert torch.equal(after["bn1.running_mean"], before["bn1.running_mean"])
    assert torch.equal(after["bn1.num_batches_tracked"], before["bn1.num_batches_tracked"])
    trained = network()
    pipeline.compress(trained, DATA, settings(norms="train", epochs=1, validation=0))
    assert not torch.equal(weights_of(trained)["bn1.running_mean"], before["bn1.running_mean"])


def test_random_weights_teach_nothing() -> None:
    with pytest.raises(HwbmpqError, match="no float network to learn from"):
        pipeline.compress(network(), DATA, settings(weights=None, distill=0.5))


def test_a_teacher_s_scores_are_compared_by_their_squares() -> None:
    teacher, student = nn.Linear(4, 3), nn.Linear(4, 3)
    inputs = torch.randn(6, 4)
    outputs = student(inputs)
    heard = Teacher(teacher, share=0.75).loss(outputs, ModelInputs.of(inputs), torch.tensor(2.0))
    torch.testing.assert_close(heard, 0.25 * 2 + 0.75 * (outputs - teacher(inputs)).square().mean())


def test_a_teacher_s_loss_is_the_divergence_mixed_with_the_own_loss() -> None:
    teacher, student = nn.Linear(4, 3), nn.Linear(4, 3)
    inputs, labels = torch.randn(6, 4), torch.randint(3, (6,))
    outputs = student(inputs)
    own = F.cross_entropy(outputs, labels)
    heard = Teacher(teacher, share=0.25, compares="kl", temperature=2.0).loss(
        outputs, ModelInputs.of(inputs), own
    )
    p, q = (F.softmax(net(inputs) / 2, dim=1) for net in (teacher, student))
    divergence = (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(heard, 0.75 * own + 0.25 * 4 * divergence)
    heard.backward()
    assert teacher.weight.grad is None
    with pytest.raises(HwbmpqError, match="teacher answers"):
        Teacher(nn.Linear(4, 2), share=1.0).loss(outputs, ModelInputs.of(inputs), own)


def test_another_network_can_teach() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 10)

    losses: list[float] = []

    class Look(TrainingHook):
        def after_epoch(self, record: Any, decision: Any) -> None:
            losses.append(record["loss"])

    pipeline.compress(network(), DATA, settings(epochs=1), hooks=[Look()], teacher=Fixed())
    own = list(losses)
    pipeline.compress(network(), DATA, settings(epochs=1), hooks=[Look()])
    assert own != losses[1:]


def test_a_teacher_that_is_code_is_not_taken_from_settings() -> None:
    with pytest.raises(HwbmpqError, match="teacher"):
        settings(teacher="file:evil.py:build")


def test_the_report_has_both_figures(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run").create()
    result = pipeline.compress(network(), DATA, settings(epochs=1, validation=32), run=run)
    (headline,) = (one for one in hwbmpq.report.report_on_run(run.path).headlines if one.is_metric)
    before, after = result.progress.calibrated, result.progress.records[-1]["validation_accuracy"]
    assert before is not None
    assert f"validation accuracy {100 * before:.2f}% calibrated, {100 * after:.2f}% trained" in headline.note
    assert ("was kept" in headline.note) == result.progress.keeps_calibrated
    assert headline.note in (run.path / "report.html").read_text()


def test_a_run_of_0_1_0_from_weights_keeps_its_meaning(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "# written by: hwbmpq 0.1.0, some day\nmodel: hwbmpq:resnet8\ntarget: mpic\nweights: net.pt\nepochs: 2\nlr: 0.01\n"
    )
    found = resolve_settings(read_settings(file))
    assert (found.quantizer, found.start, found.distill, found.norms) == ("paper", "widest", 0.0, "train")
    assert (found.settle, found.clip_norm, found.optimizer) == (0.0, None, "sgd")
