"""Which activations are in memory at each step."""

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.values import Schedule, StoredTensor


def schedule_of(model: nn.Module, *shape: int) -> Schedule:
    return hwbmpq.describe(model, torch.zeros(1, *shape)).schedule


def named(schedule: Schedule, name: str) -> StoredTensor:
    (tensor,) = [tensor for tensor in schedule.tensors if tensor.name == name]
    return tensor


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.skip = nn.Identity()
        self.head = nn.Linear(4 * 8 * 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.body(x) + self.skip(x))
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def test_norms_and_activations_work_in_place(tiny_cnn: nn.Module) -> None:
    schedule = schedule_of(tiny_cnn, 3, 8, 8)
    assert schedule.steps == ("0", "3", "6", "8")
    sizes = {tensor.name: tensor.elements for tensor in schedule.tensors[1:]}
    assert sizes == {"0": 4 * 64, "3": 6 * 16, "6": 12, "8": 5}


def test_a_tensor_lives_from_its_maker_to_its_last_reader(tiny_cnn: nn.Module) -> None:
    schedule = schedule_of(tiny_cnn, 3, 8, 8)
    lives = [(tensor.made_at, tensor.last_read_at) for tensor in schedule.tensors]
    assert lives == [(0, 0), (0, 1), (1, 2), (2, 3), (3, 3)]
    assert [tensor.readers for tensor in schedule.tensors] == [("0",), ("3",), ("6",), ("8",), ()]
    assert [tensor.leaves for tensor in schedule.tensors] == [False, False, False, False, True]


def test_the_residual_stream_is_kept_until_the_addition() -> None:
    schedule = schedule_of(Residual(), 3, 8, 8)
    assert schedule.steps == ("stem", "body", "add", "head")
    stem = named(schedule, "stem")
    assert (stem.made_at, stem.last_read_at, stem.feeds_addition) == (0, 2, True)
    assert stem.readers == ("body",)
    assert named(schedule, "body").feeds_addition
    total = named(schedule, "add")
    assert (total.feeds_addition, total.readers) == (False, ("head",))


def test_a_pool_makes_a_tensor_and_passes_its_readers_on() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3))
    schedule = schedule_of(model, 3, 8, 8)
    assert [tensor.elements for tensor in schedule.tensors[1:3]] == [256, 64]
    assert named(schedule, "0").readers == ("2",)


def test_an_operation_on_a_tensor_that_others_read_is_not_in_place() -> None:
    class PreActivation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.body(torch.relu(x)) + x  # type: ignore[no-any-return]

    schedule = schedule_of(PreActivation(), 3, 8, 8)
    assert schedule.steps == ("stem", "relu", "body", "add")
    assert named(schedule, "stem").last_read_at == 3


def test_adding_a_constant_is_no_residual_connection() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x) + 1)  # type: ignore[no-any-return]

    schedule = schedule_of(Shifted(), 3, 8, 8)
    assert not any(tensor.feeds_addition for tensor in schedule.tensors)


class TwoOutputs(nn.Module):
    """Its features leave the network, and are read inside as well."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.a(x))
        return features, self.c(torch.relu(self.b(features)))


class TwoOutputsUntraceable(TwoOutputs):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x) if float(x.sum()) < 1e9 else (x, x)


@pytest.mark.parametrize("model", [TwoOutputs(), TwoOutputsUntraceable()], ids=["fx", "hooks"])
def test_what_is_returned_stays_until_the_end(model: nn.Module) -> None:
    schedule = schedule_of(model, 3, 8, 8)
    (features,) = [tensor for tensor in schedule.tensors if tensor.readers == ("b",)]
    assert (features.leaves, features.last_read_at) == (True, len(schedule.steps) - 1)


def test_the_same_steps_whoever_traced_it() -> None:
    class Branching(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.shape[0] else x  # torch.fx cannot follow this

    graph = hwbmpq.describe(Branching(), torch.zeros(1, 3, 8, 8))
    assert graph.traced_by != "fx"
    sizes = [tensor.elements for tensor in graph.schedule.tensors]
    assert sizes == [tensor.elements for tensor in schedule_of(Residual(), 3, 8, 8).tensors]


def test_a_large_network_is_scheduled_quickly() -> None:
    model = hwbmpq.models.load_model("timm:densenet201", device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    schedule = graph.schedule
    assert schedule is graph.schedule  # computed once
    assert all(tensor.made_at <= tensor.last_read_at < len(schedule.steps) for tensor in schedule.tensors)
    assert {reader for tensor in schedule.tensors for reader in tensor.readers} == {
        layer.name for layer in graph
    }


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.keys = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        scores = torch.softmax(x @ self.keys(x).transpose(1, 2), 2)
        return self.head(scores @ x)  # type: ignore[no-any-return]


def test_products_of_activations_read_floats_and_make_tensors() -> None:
    schedule = schedule_of(Attention(), 5, 4)
    assert schedule.steps == ("first", "keys", "matmul", "matmul_1", "head")
    in_float = {tensor.name: tensor.read_in_float for tensor in schedule.tensors}
    assert in_float == {
        "x": False,
        "first": True,
        "keys": True,
        "matmul": True,
        "matmul_1": False,
        "head": False,
    }
    assert named(schedule, "first").readers == ("keys",)
    assert named(schedule, "matmul").elements == 25


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.gru = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        values, _ = self.gru(self.first(x))
        return self.head(values)  # type: ignore[no-any-return]


def test_a_recurrent_layer_makes_one_tensor_and_an_unused_state_none() -> None:
    schedule = schedule_of(Recurrent(), 5, 4)
    assert schedule.steps == ("first", "gru.weight_ih_l0", "head")
    assert named(schedule, "first").read_in_float
    made = named(schedule, "gru.weight_ih_l0")
    assert (made.elements, made.readers, made.leaves, made.read_in_float) == (30, ("head",), False, False)
