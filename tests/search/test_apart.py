"""Widths of weights and activations, chosen apart."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.allocate import AllocationError, values_for
from hwbmpq.errors import HwbmpqError, UnsupportedPrecisionError
from hwbmpq.hardware import candidates, load_profile
from hwbmpq.quant import quantized_layers
from hwbmpq.search import AllocationConfig, BitAllocator, build_search_space
from hwbmpq.search.planning import plan
from hwbmpq.training.settings import resolve_settings
from hwbmpq.values import Precision, Sensitivity


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(F.relu(self.stem(x))))))
        return self.head(x.mean((2, 3)))


EXAMPLE = torch.zeros(1, 3, 8, 8)
NAMES = ("stem", "a", "b", "head")


def pairs(*texts: str) -> tuple[Precision, ...]:
    return tuple(Precision.parse(text) for text in texts)


def allocator_for(model: nn.Module, **options: Any) -> BitAllocator:
    options = {"budgets": {"weight_memory": "90%", "bops": "82%"}, "epochs": 4, "bits": (2, 4)} | options
    options = {
        "target": "generic",
        "activation_bits": "apart",
        "warmup_epochs": 1,
        "interval_epochs": 1,
    } | options
    return BitAllocator(model, EXAMPLE, **options)


def train(model: nn.Module, allocator: BitAllocator, steps: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        x = torch.randn(6, 3, 8, 8, generator=generator)
        F.cross_entropy(model(x), torch.randint(0, 5, (6,), generator=generator)).backward()
        allocator.step()
        optimizer.step()
        optimizer.zero_grad()


# candidates


def test_all_pairs_that_the_device_runs_are_candidates() -> None:
    mpic = load_profile("mpic")
    expected = pairs("W2A2", "W2A4", "W2A8", "W4A2", "W4A4", "W4A8")
    assert candidates(mpic, (2, 4), activation_bits="apart", op="conv2d") == expected
    narrow = candidates(mpic, (2, 4), activation_bits="apart", activation_widths=(4,), op="conv2d")
    assert narrow == pairs("W2A4", "W4A4")


def test_widths_that_the_device_does_not_run_are_refused() -> None:
    with pytest.raises(UnsupportedPrecisionError, match="3-bit activations"):
        candidates(
            load_profile("mpic"), (2, 4), activation_bits="apart", activation_widths=(3, 4), op="conv2d"
        )


def test_a_device_without_such_pairs_says_so() -> None:
    graph = hwbmpq.describe(Chain(), EXAMPLE)
    space = build_search_space(graph, load_profile("gap9_ne16"), bits=(2, 4), activation_bits="apart")
    assert not space.pairs_apart
    assert "there is nothing to choose apart" in " ".join(space.remarks)


def test_activation_widths_go_with_apart_only() -> None:
    graph = hwbmpq.describe(Chain(), EXAMPLE)
    with pytest.raises(HwbmpqError, match="go with widths apart"):
        build_search_space(graph, load_profile("generic"), activation_bits="same", activation_widths=(4,))


# values


def sensitivity(**activations: dict[int, float]) -> Sensitivity:
    """``a`` reads what must not be rounded and has weights that may; ``b`` the other way round."""
    weights = {"stem": {16: 0.0}, "a": {2: 0.1, 4: 0.0}, "b": {2: 5.0, 4: 0.0}, "head": {16: 0.0}}
    activations = activations or {"a": {2: 9.0, 4: 6.0, 8: 0.0}, "b": {2: 0.2, 4: 0.1, 8: 0.0}}
    return Sensitivity(
        method="enbg",
        scores=dict.fromkeys(NAMES, 1.0),
        errors=weights,
        activation_errors=activations,
    )


def test_a_layer_with_sensitive_activations_gets_narrow_weights_and_wide_activations() -> None:
    graph = hwbmpq.describe(Chain(), EXAMPLE)
    free = {"bits": (2, 4), "activation_bits": "apart", "activation_widths": (2, 8)}
    whole = build_search_space(
        graph, load_profile("generic"), {"weight_memory": "100%", "bops": "100%"}, **free
    )
    layers = {layer.name: layer for layer in graph}
    room = whole.costs.table("bops")
    least = room.total({**whole.widest, "a": Precision.parse("W2A8"), "b": Precision.parse("W4A2")})
    one_narrow = layers["a"].parameters * 2  # bits: room for all weights at 4 bits but those of one layer
    limits = {
        "bops": least,
        "weight_memory": whole.costs.table("weight_memory").total(whole.widest) - one_narrow,
    }
    found = plan(
        build_search_space(graph, load_profile("generic"), limits, **free), sensitivity(), objective="error"
    )
    assert (str(found.allocation.bits["a"]), str(found.allocation.bits["b"])) == ("W2A8", "W4A2")
    assert [alternative.label for alternative in found.alternatives] == ["W2A2", "W2A8", "W4A2", "W4A8"]


def test_the_value_of_a_pair_is_what_both_of_its_widths_save() -> None:
    options = pairs("W2A2", "W2A8", "W4A2", "W4A8")
    found = values_for(sensitivity(), {"a": options}, "error")["a"]
    assert [found[pair] for pair in options] == pytest.approx([0.0, 9.0, 0.1, 9.1])


def test_with_one_activation_width_for_each_weight_width_both_count_if_known() -> None:
    same, wide = pairs("W2A2", "W4A4"), pairs("W2A8", "W4A8")
    assert values_for(sensitivity(), {"a": same}, "error")["a"][same[1]] == pytest.approx(0.1 + 3.0)
    assert values_for(sensitivity(), {"a": wide}, "error")["a"][wide[1]] == pytest.approx(0.1)
    unknown = sensitivity(b={2: 1.0})
    assert values_for(unknown, {"a": same}, "error")["a"][same[1]] == pytest.approx(0.1)


def test_sensitivities_without_activations_are_refused() -> None:
    with pytest.raises(AllocationError, match="no error of what layer 'a' reads at 2, 8 bits"):
        values_for(sensitivity(b={2: 1.0}), {"a": pairs("W2A2", "W2A8")}, "error")


@pytest.mark.parametrize("objective", ["linear", "hawq"])
def test_objectives_without_activations_are_refused(objective: str) -> None:
    with pytest.raises(AllocationError, match=f"the objective {objective} values weight widths alone"):
        values_for(sensitivity(), {"a": pairs("W2A2", "W2A8")}, objective)
    with pytest.raises(HwbmpqError, match="objective"):
        allocator_for(Chain(), objective=objective)


@pytest.mark.parametrize(("method", "bits"), [("hpq", (4,)), ("ad", (2, 4)), ("hawq", (2, 4))])
def test_methods_without_activations_are_refused(method: str, bits: tuple[int, ...]) -> None:
    with pytest.raises(HwbmpqError, match=f"the method {method} has no value for activation widths"):
        allocator_for(Chain(), method=method, bits=bits)


# while training


def test_error_is_the_objective_if_none_is_named() -> None:
    config = {"target": "generic", "epochs": 4}
    assert AllocationConfig(**config, activation_bits="apart").objective == "error"
    assert AllocationConfig(**config, activation_bits="same").objective == "linear"
    given = {"model": "m", "target": "mpic", "data": "cifar10"}
    assert resolve_settings({**given, "activation_bits": "apart"}).objective == "error"
    with pytest.raises(HwbmpqError, match="linear"):
        allocator_for(Chain(), objective="linear")


def test_training_decides_pairs_by_what_it_saw() -> None:
    torch.manual_seed(0)
    model = Chain()
    allocator = allocator_for(model)
    assert {str(p) for p in allocator.bits.values()} == {"W16A16", "W4A8"}
    train(model, allocator, 5)
    decision = allocator.epoch_end()
    assert decision is not None
    for name in ("a", "b"):
        errors = decision.decided_by.activation_errors[name]
        assert errors[2] > errors[4] > errors[8] > 0
        assert {name: layer.precision for name, layer in quantized_layers(model)}[name] == decision.after[
            name
        ]
    assert all("of the expected loss" in move.why for move in decision.moves)
    assert decision.moves
    assert type(decision).from_dict(decision.to_dict()) == decision


def test_weights_and_activations_are_on_one_scale_whatever_the_batch() -> None:
    """A batch that holds every image twice has the same gradients, and half the noise that batch sizes are counted for."""
    found = []
    for times in (1, 2):
        torch.manual_seed(0)
        model = Chain()
        allocator = allocator_for(model, warmup_epochs=1)
        x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3)).repeat(times, 1, 1, 1)
        y = torch.arange(6).remainder(5).repeat(times)
        for _ in range(8):
            with torch.no_grad():
                model(x)
        F.cross_entropy(model(x), y).backward()
        allocator.step()
        decision = allocator.epoch_end()
        assert decision is not None
        found.append(decision.decided_by)
    once, twice = found
    assert twice.activation_errors["a"][2] == pytest.approx(once.activation_errors["a"][2], rel=1e-3)
    assert twice.errors["a"][2] == pytest.approx(2 * once.errors["a"][2], rel=1e-3)


def test_a_resumed_run_decides_as_one_that_was_not_stopped() -> None:
    decisions = []
    for stops in (False, True):
        torch.manual_seed(0)
        model = Chain()
        allocator = allocator_for(model, warmup_epochs=2, interval_epochs=2)
        train(model, allocator, 3, seed=1)
        allocator.epoch_end()
        train(model, allocator, 3, seed=2)
        if stops:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "allocator": allocator.state_dict()}, buffer)
            buffer.seek(0)
            state = torch.load(buffer, weights_only=True)
            model = Chain()
            allocator = allocator_for(model, warmup_epochs=2, interval_epochs=2)
            model.load_state_dict(state["model"])
            allocator.load_state_dict(state["allocator"])
        train(model, allocator, 2, seed=4)
        decisions.append(allocator.epoch_end())
    whole, resumed = decisions
    assert whole is not None
    assert resumed is not None
    assert resumed.decided_by == whole.decided_by
    assert resumed.after == whole.after


def test_states_from_before_there_were_activations_load() -> None:
    model = Chain()
    allocator = allocator_for(model, objective="error", activation_bits=8, budgets={"weight_memory": "90%"})
    train(model, allocator, 2)
    state = allocator.state_dict()
    for name in ("epoch_activation_errors", "step", "activations"):
        del state[name]
    allocator.load_state_dict(state)
    train(model, allocator, 1)
    assert allocator.epoch_end() is not None
