"""A part of a data set that a user's own code makes: a DataLoader, or a data set to make one of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from hwbmpq import distributed
from hwbmpq.data.inputs import ModelInputs, part_of, sample_count

_EVALUATED_AT_ONCE = 250


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderPart:
    """What a user's own function returned for a part."""

    source: Any
    """A DataLoader or anything with a length that yields batches; or a torch ``Dataset``."""

    @property
    def is_dataset(self) -> bool:
        return isinstance(self.source, Dataset)

    def training_loader(self, *, batch_size: int, limit: int | None, seed: int) -> Any:
        """The user's own loader; of a data set, shuffled batches in an order that depends on seed and epoch only."""
        if not self.is_dataset:
            return _shortened(self.source, limit)
        samples, ranks = _picked(self.source, limit, seed), distributed.rank_count()
        share = max(1, min(batch_size, len(samples)) // ranks)
        order: DistributedSampler[Any] = DistributedSampler(
            samples, num_replicas=ranks, rank=distributed.rank(), seed=seed, drop_last=True
        )
        return DataLoader(
            samples, batch_size=share, sampler=order, drop_last=True, generator=torch.Generator()
        )

    def test_loader(self, *, limit: int | None, seed: int) -> Any:
        if not self.is_dataset:
            return _shortened(self.source, limit)
        samples = _picked(self.source, limit, seed)
        return DataLoader(samples, batch_size=_EVALUATED_AT_ONCE, generator=torch.Generator())


def _picked(samples: Any, limit: int | None, seed: int) -> Any:
    if limit is None or limit >= len(samples):
        return samples
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[:limit]
    return Subset(samples, chosen.tolist())


def _shortened(loader: Any, limit: int | None) -> Any:
    return loader if limit is None else FirstSamples(loader=loader, limit=limit)


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstSamples:
    """The first samples of a loader, in its own batches, the last one cut."""

    loader: Any
    limit: int

    @property
    def sampler(self) -> Any:
        """Told the epoch."""
        return getattr(self.loader, "sampler", None)

    @property
    def dataset(self) -> range:
        """As long as what is shown."""
        held = getattr(self.loader, "dataset", None)
        return range(self.limit if held is None else min(self.limit, len(held)))

    def __len__(self) -> int:
        size = getattr(self.loader, "batch_size", None) or 1
        return min(len(self.loader), -(-self.limit // size))

    def __iter__(self) -> Iterator[Any]:
        left = self.limit
        for inputs, targets in self.loader:
            if left <= 0:
                return
            count = sample_count(inputs)
            yield ModelInputs.of(inputs).part(slice(left)).given, part_of(targets, slice(left), count)
            left -= count
