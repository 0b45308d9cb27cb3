"""``BitAllocationCallback`` in PyTorch Lightning's own ``Trainer``, beside a plain loop on the same batches."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compared_allocators import assert_same
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError
from hwbmpq.search.allocator import BitAllocator

import_torchvision()  # Lightning imports it as it is
lightning = pytest.importorskip("lightning", reason="the extra hwbmpq[lightning] is not installed")

from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from hwbmpq.integrations.lightning import BitAllocationCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*when using `ckpt_path`, callbacks"),
]

EPOCHS, LEARNING_RATE = 5, 0.05
BATCHES = [
    (torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(n)), torch.arange(4) % 3)
    for n in range(4)
]


def make_network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 12),
        nn.ReLU(),
        nn.Linear(12, 3),
    )


def allocator_for(network: nn.Module, **options: Any) -> BitAllocator:
    options = {"epochs": EPOCHS, "warmup_epochs": 2, "interval_epochs": 1, **options}
    return BitAllocator(
        network, BATCHES[0][0][:1], target="generic", bits=(2, 4), budgets={"memory": "85%"}, **options
    )


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()
        self.fused = False

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("loss", F.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), LEARNING_RATE, momentum=0.9, fused=self.fused)


def loader() -> DataLoader[Any]:
    images, labels = (torch.cat(parts) for parts in zip(*BATCHES, strict=True))
    return DataLoader(TensorDataset(images, labels), batch_size=4)


def fit(
    module: LightningModule,
    callback: BitAllocationCallback,
    *,
    path: Path | None = None,
    validate: bool = False,
    others: list[Any] | None = None,
    **options: Any,
) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    checkpoints = (
        {} if any(isinstance(c, ModelCheckpoint) for c in others or []) else {"enable_checkpointing": False}
    )
    options = {"max_epochs": EPOCHS, "accelerator": "cpu", **quiet, **checkpoints, **options}
    trainer = Trainer(callbacks=[*(others or []), callback], **options)
    trainer.fit(module, loader(), loader() if validate else None, ckpt_path=path)
    return trainer


def plain_loop(*, accumulate: int = 1, clip: float | None = None, epochs: int = EPOCHS) -> BitAllocator:
    network = make_network()
    allocator = allocator_for(network)
    optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, momentum=0.9)
    for _ in range(epochs):
        for number, (x, y) in enumerate(BATCHES):
            (F.cross_entropy(network(x), y) / accumulate).backward()
            if (number + 1) % accumulate == 0:
                allocator.step()
                if clip is not None:
                    nn.utils.clip_grad_norm_(network.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        allocator.epoch_end()
    return allocator


@pytest.fixture
def trained() -> tuple[Classifier, BitAllocationCallback]:
    module = Classifier()
    return module, BitAllocationCallback(allocator_for(module.network))


def test_widths_are_decided_on_schedule_within_the_budget(trained: Any) -> None:
    module, callback = trained
    fit(module, callback)
    assert [decision.epoch for decision in callback.allocator.history] == [2, 3, 4]
    assert all(decision.slack["memory"] >= 0 for decision in callback.allocator.history)
    assert {p.weight_bits for p in callback.allocator.bits.values()} == {2, 4, 16}


def test_clipping_points_train(trained: Any) -> None:
    module, callback = trained
    trainer = fit(module, callback)
    held = {id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]}
    assert {id(p) for name, p in module.network.named_parameters() if name.endswith("alpha")} <= held


@pytest.mark.parametrize("validate", [False, True], ids=["alone", "with validation"])
def test_it_is_the_plain_loop(trained: Any, validate: bool) -> None:
    """Validation, and its sanity check before training, count for nothing."""
    module, callback = trained
    fit(module, callback, validate=validate)
    assert_same(callback.allocator, plain_loop())


def test_gradients_are_read_before_clipping(trained: Any) -> None:
    module, callback = trained
    fit(module, callback, gradient_clip_val=0.01)
    assert_same(callback.allocator, plain_loop(clip=0.01))


def test_accumulated_batches_are_one_step(trained: Any) -> None:
    module, callback = trained
    fit(module, callback, accumulate_grad_batches=2)
    assert_same(callback.allocator, plain_loop(accumulate=2))


@pytest.mark.parametrize("fused", [False, True], ids=["Lightning unscales", "the optimizer unscales"])
def test_the_scale_of_mixed_precision_is_undone(fused: bool) -> None:
    found = []
    for scale in (1.0, 1024.0):
        module = Classifier()
        module.fused = fused
        callback = BitAllocationCallback(allocator_for(module.network))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        fit(module, callback, plugins=[MixedPrecision("16-mixed", "cpu", scaler)], max_steps=1)
        found.append(callback.allocator.sensitivities)
    assert found[1] == pytest.approx(found[0], rel=0.02)


class Adversaries(Classifier):
    """Two optimizers, of which only one trains the network."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(2, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        own, other = self.optimizers()
        for optimizer, loss in (
            (own, F.cross_entropy(self.network(batch[0]), batch[1])),
            (other, self.other(torch.ones(1, 2)).sum()),
        ):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return super().configure_optimizers(), torch.optim.SGD(self.other.parameters(), LEARNING_RATE)


def test_steps_of_other_optimizers_do_not_count() -> None:
    module = Adversaries()
    callback = BitAllocationCallback(allocator_for(module.network))
    fit(module, callback)
    assert_same(callback.allocator, plain_loop())


# saved and resumed


SAVERS: dict[str, tuple[Callable[..., ModelCheckpoint], bool]] = {
    "at the end of epochs": (lambda **o: ModelCheckpoint(save_on_train_epoch_end=True, **o), False),
    "after validation": (lambda **o: ModelCheckpoint(save_on_train_epoch_end=False, **o), True),
    "in steps": (lambda **o: ModelCheckpoint(every_n_train_steps=1, **o), False),
}


@pytest.mark.parametrize("saver", SAVERS)
def test_a_resumed_run_decides_as_if_it_had_gone_on(trained: Any, saver: str, tmp_path: Path) -> None:
    """From every epoch's end, before and after its decision was due."""
    module, callback = trained
    make_saver, validate = SAVERS[saver]
    keep = make_saver(dirpath=tmp_path, filename="{step}", save_top_k=-1)
    fit(module, callback, others=[keep], validate=validate)
    expected = plain_loop()
    assert_same(callback.allocator, expected)
    for step in (4, 8, 12, 16):
        resumed = Classifier()
        callback = BitAllocationCallback(allocator_for(resumed.network))
        fit(resumed, callback, path=tmp_path / f"step={step}.ckpt", validate=validate)
        assert_same(callback.allocator, expected)


def test_a_run_that_resumes_within_an_epoch_decides_nothing_twice(trained: Any, tmp_path: Path) -> None:
    """Lightning goes on with the epoch's first images, unless the loader has a state: widths may differ."""
    module, callback = trained
    fit(module, callback, max_steps=10).save_checkpoint(tmp_path / "middle.ckpt")
    assert [decision.epoch for decision in callback.allocator.history] == [2]
    resumed = Classifier()
    callback = BitAllocationCallback(allocator_for(resumed.network))
    fit(resumed, callback, path=tmp_path / "middle.ckpt")
    assert [decision.epoch for decision in callback.allocator.history] == [2, 3, 4]


def test_a_checkpoint_of_another_question_is_refused(trained: Any, tmp_path: Path) -> None:
    module, callback = trained
    fit(module, callback).save_checkpoint(tmp_path / "end.ckpt")
    other = Classifier()
    allocator = BitAllocator(
        other.network, BATCHES[0][0], target="generic", bits=(2, 8), budgets={"memory": "90%"}, epochs=EPOCHS
    )
    with pytest.raises(HwbmpqError, match="another network, device or budget"):
        fit(other, BitAllocationCallback(allocator), path=tmp_path / "end.ckpt")


# how a run ends


def test_nothing_is_decided_that_no_training_follows(trained: Any) -> None:
    module, callback = trained
    stop = EarlyStopping("loss", stopping_threshold=100.0, check_finite=False)
    fit(module, callback, others=[stop], validate=True, min_epochs=2)
    assert callback.allocator.history == []
    assert not callback.allocator.is_settled


def test_the_validation_of_an_epoch_sees_the_widths_that_it_trained(trained: Any) -> None:
    module, callback = trained
    seen = []
    module.on_validation_epoch_end = lambda: seen.append(dict(callback.allocator.bits))
    fit(module, callback, validate=True, num_sanity_val_steps=0)
    before = [decision.before for decision in callback.allocator.history]
    assert seen == [before[0], *before, callback.allocator.bits]


# mistakes


def test_another_number_of_epochs_is_refused(trained: Any) -> None:
    module, callback = trained
    with pytest.raises(HwbmpqError, match="trains 3 epochs, the allocator decides for 5") as error:
        fit(module, callback, max_epochs=3)
    assert error.value.hint == "BitAllocator(..., epochs=3)"


def test_a_network_that_is_not_trained_is_refused(trained: Any) -> None:
    with pytest.raises(HwbmpqError, match="not part of Classifier"):
        fit(Classifier(), trained[1])


def test_the_trainer_of_the_other_name_takes_it_too(trained: Any) -> None:
    """``lightning`` brings ``pytorch_lightning`` along: the same code with classes of its own."""
    other = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = trained[0].network

        training_step = Classifier.training_step
        configure_optimizers = Classifier.configure_optimizers
        fused = False

    trainer = other.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[trained[1]],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Other(), loader())
    assert_same(trained[1].allocator, plain_loop())


def test_without_lightning_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hwbmpq.integrations.lightning")
    for name in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(HwbmpqError, match="Lightning is not installed") as error:
        importlib.import_module("hwbmpq.integrations.lightning")
    assert error.value.hint == "pip install 'hwbmpq[lightning]'"
