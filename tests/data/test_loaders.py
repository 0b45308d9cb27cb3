"""A user's own DataLoaders in the place of a data set."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import hwbmpq
from hwbmpq.data import from_loaders
from hwbmpq.errors import HwbmpqError


def loader(count: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(count)
    images = torch.randn(count, 3, 32, 32, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(count) % 10), batch_size=16)


def test_compress_trains_on_loaders() -> None:
    settings = hwbmpq.training.resolve_settings(
        {"model": "hwbmpq:resnet8", "target": "mpic", "budgets": {"memory": "24KiB"}, "epochs": 2}
    )
    network = hwbmpq.models.load_model(settings.model).network
    data = from_loaders(loader(48), loader(20), classes=10)
    result = hwbmpq.pipeline.compress(network, data, settings)
    assert result.evaluation.images == 20
    assert result.plan is not None
    assert result.plan.costs["memory"].total <= 24 * 8192


def test_batches_are_the_loaders_cut_to_size() -> None:
    data = from_loaders(loader(20), loader(4), classes=10)
    assert data.train.input_size == (3, 32, 32)
    assert [len(labels) for _, labels in data.train.batches(10)] == [10, 6, 4]
    assert torch.equal(torch.cat([labels for _, labels in data.train.batches(3)]), torch.arange(20) % 10)


def test_a_loader_that_yields_nothing_is_an_error() -> None:
    with pytest.raises(HwbmpqError, match="yields nothing"):
        from_loaders([], [], classes=10)
