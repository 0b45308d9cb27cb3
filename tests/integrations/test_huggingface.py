"""``BitAllocationCallback`` in Hugging Face's own ``Trainer``, beside a plain loop on the same batches."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from compared_allocators import assert_same, decisions
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError
from hwbmpq.search.allocator import BitAllocator

import_torchvision()  # transformers imports it as it is
pytest.importorskip("transformers", reason="the extra hwbmpq[huggingface] is not installed")
pytest.importorskip("accelerate", reason="the extra hwbmpq[huggingface] is not installed")

from transformers import (  # noqa: E402
    EarlyStoppingCallback,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
)

from hwbmpq.integrations.huggingface import STATE_FILE, BitAllocationCallback  # noqa: E402

EPOCHS, STEPS, LEARNING_RATE = 5, 4, 0.05
IMAGES = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
DATA = [{"images": image, "labels": torch.tensor(number % 3)} for number, image in enumerate(IMAGES)]


class Classifier(nn.Module):
    """A downsample layer reads what its sibling reads: they share a clipping point, which safetensors must bear."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.first = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.shortcut = nn.Conv2d(4, 8, 1, stride=2)
        self.hidden = nn.Linear(8, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        x = F.relu(self.stem(images))
        x = F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))
        logits = self.head(F.relu(self.hidden(x.mean((2, 3)))))
        return logits if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def allocator_for(model: nn.Module, **options: Any) -> BitAllocator:
    options = {"epochs": EPOCHS, "warmup_epochs": 2, "interval_epochs": 1, "bits": (2, 4), **options}
    return BitAllocator(model, IMAGES[:1], target="generic", budgets={"memory": "85%"}, **options)


def callback_for(model: nn.Module | None = None) -> BitAllocationCallback:
    return BitAllocationCallback(allocator_for(Classifier() if model is None else model))


def trainer_for(callback: BitAllocationCallback, folder: Path, others: Any = None, **options: Any) -> Trainer:
    options = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": len(DATA) // STEPS,
        "train_sampling_strategy": "sequential",
        "optim": "sgd",
        "optim_args": "momentum=0.9",
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        **options,
    }
    return Trainer(
        callback.allocator.model,
        TrainingArguments(str(folder), **options),
        train_dataset=DATA,
        eval_dataset=DATA,
        callbacks=others,
    )


def train(
    callback: BitAllocationCallback, folder: Path, resume: Path | bool | None = None, **options: Any
) -> Trainer:
    trainer = trainer_for(callback, folder, **options)
    callback.attach(trainer)
    trainer.train(resume_from_checkpoint=str(resume) if isinstance(resume, Path) else resume)
    return trainer


def plain_loop(*, accumulate: int = 1, clip: float | None = None) -> BitAllocator:
    network = Classifier()
    allocator = allocator_for(network)
    optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, momentum=0.9)
    for _ in range(EPOCHS):
        for number in range(STEPS):
            batch = DATA[4 * number : 4 * number + 4]
            inputs = {name: torch.stack([sample[name] for sample in batch]) for name in batch[0]}
            (network(**inputs)["loss"] / accumulate).backward()
            if (number + 1) % accumulate == 0:
                allocator.step()
                if clip is not None:
                    nn.utils.clip_grad_norm_(network.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        allocator.epoch_end()
    return allocator


def test_widths_are_decided_on_schedule_within_the_budget(tmp_path: Path) -> None:
    callback = callback_for()
    train(callback, tmp_path)
    assert [decision.epoch for decision in callback.allocator.history] == [2, 3, 4]
    assert all(decision.slack["memory"] >= 0 for decision in callback.allocator.history)
    assert {p.weight_bits for p in callback.allocator.bits.values()} == {2, 4, 16}


@pytest.mark.parametrize(
    "options", [{}, {"eval_strategy": "epoch", "eval_on_start": True}], ids=["alone", "with evaluation"]
)
def test_it_is_the_plain_loop(tmp_path: Path, options: dict[str, Any]) -> None:
    """Evaluation counts for nothing, not even before training."""
    callback = callback_for()
    train(callback, tmp_path, **options)
    assert_same(callback.allocator, plain_loop())


def test_gradients_are_read_before_clipping(tmp_path: Path) -> None:
    callback = callback_for()
    train(callback, tmp_path, max_grad_norm=0.01)
    assert_same(callback.allocator, plain_loop(clip=0.01))


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    callback = callback_for()
    train(callback, tmp_path, gradient_accumulation_steps=2)
    assert_same(callback.allocator, plain_loop(accumulate=2))


def test_the_scale_of_float16_is_undone(tmp_path: Path) -> None:
    """The Trainer scales on GPUs only; here its accelerator is given a scaler, as it would make one there."""
    found = []
    for scale in (1.0, 1024.0):
        callback = callback_for()
        trainer = trainer_for(callback, tmp_path)
        callback.attach(trainer)
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        trainer.train()
        found.append(callback.allocator.history[0].sensitivities)
    assert found[1] == pytest.approx(found[0], rel=1e-4)


# a model of the library


def test_a_network_of_transformers_is_trained_saved_and_resumed(tmp_path: Path) -> None:
    config = ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    pictures = [{"pixel_values": torch.randn(3, 32, 32), "labels": torch.tensor(n % 3)} for n in range(4)]
    found = []
    for resume in (False, True):
        model = ResNetForImageClassification(config)
        allocator = BitAllocator(
            model,
            pictures[0]["pixel_values"][None],
            target="generic",
            bits=(2, 4),
            budgets={"weight_memory": "85%"},
            epochs=3,
        )
        callback = BitAllocationCallback(allocator)
        trainer = trainer_for(callback, tmp_path, num_train_epochs=3, save_strategy="epoch")
        trainer.train_dataset = pictures
        callback.attach(trainer)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1") if resume else None)
        found.append(allocator)
    assert len(found[0].history) == 2
    assert decisions(found[1]) == decisions(found[0])


# saved and resumed


@pytest.mark.parametrize(
    "saving",
    [
        {"save_strategy": "epoch"},
        {"save_strategy": "steps", "save_steps": 5},
        pytest.param({"save_strategy": "steps", "save_steps": 2}, marks=pytest.mark.slow),
    ],
    ids=["epochs", "steps", "every other step"],
)
def test_a_resumed_run_decides_as_if_it_had_gone_on(tmp_path: Path, saving: dict[str, Any]) -> None:
    """From every checkpoint: in the middle of epochs, and at their ends, before the decision that was due."""
    callback = callback_for()
    train(callback, tmp_path, **saving)
    expected = plain_loop()
    assert_same(callback.allocator, expected)
    folders = sorted(tmp_path.glob("checkpoint-*"))
    assert len(folders) == EPOCHS * STEPS // saving.get("save_steps", STEPS)
    for folder in folders:
        resumed = callback_for()
        train(resumed, tmp_path / "elsewhere", folder)
        assert_same(resumed.allocator, expected)


def test_the_last_checkpoint_is_found(tmp_path: Path) -> None:
    train(callback_for(), tmp_path, save_strategy="steps", save_steps=7)
    resumed = callback_for()
    train(resumed, tmp_path, resume=True)
    assert_same(resumed.allocator, plain_loop())


def test_the_widths_of_the_best_checkpoint_come_with_its_weights(tmp_path: Path) -> None:
    callback = callback_for()
    options = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    trainer = train(callback, tmp_path, **options, greater_is_better=True)  # the largest loss: an early epoch
    best = Path(trainer.state.best_model_checkpoint)
    assert best.name != f"checkpoint-{EPOCHS * STEPS}"
    kept = torch.load(best / STATE_FILE, weights_only=True)
    assert {name: str(p) for name, p in callback.allocator.bits.items()} == kept["bits"]
    assert str(callback.allocator.model.first.precision) == kept["bits"]["first"]


def test_a_checkpoint_without_the_allocator_is_refused(tmp_path: Path) -> None:
    train(callback_for(), tmp_path, save_strategy="epoch")
    (tmp_path / "checkpoint-4" / STATE_FILE).unlink()
    with pytest.raises(HwbmpqError, match="checkpoint-4 was saved without a BitAllocationCallback"):
        train(callback_for(), tmp_path, tmp_path / "checkpoint-4")


# how a run ends


def test_nothing_is_decided_that_no_training_follows(tmp_path: Path) -> None:
    """It stops after the second epoch, when the first decision is due: nothing gets better than the first."""
    callback = callback_for()
    options = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    stop = EarlyStoppingCallback(early_stopping_threshold=100.0)
    trainer = train(callback, tmp_path, others=[stop], **options)
    assert trainer.state.global_step == 2 * STEPS
    assert callback.allocator.history == []
    assert not callback.allocator.is_settled


# mistakes


def test_a_callback_that_is_not_attached_says_so(tmp_path: Path) -> None:
    callback = callback_for()
    with pytest.raises(HwbmpqError, match="clips gradients before its callbacks see them") as error:
        trainer_for(callback, tmp_path, others=[callback]).train()
    assert "callback.attach(trainer)" in error.value.hint


def test_attached_and_passed_it_is_called_once(tmp_path: Path) -> None:
    callback = callback_for()
    train(callback, tmp_path, others=[callback])
    assert_same(callback.allocator, plain_loop())


def test_another_number_of_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="trains 3 epochs, the allocator decides for 5") as error:
        train(callback_for(), tmp_path, num_train_epochs=3)
    assert error.value.hint == "BitAllocator(..., epochs=3)"


def test_a_network_that_is_not_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="not part of the model"):
        callback_for().attach(trainer_for(callback_for(), tmp_path))


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hwbmpq.integrations.huggingface")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HwbmpqError, match="transformers is not installed") as error:
        importlib.import_module("hwbmpq.integrations.huggingface")
    assert error.value.hint == "pip install 'hwbmpq[huggingface]'"
