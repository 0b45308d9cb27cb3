"""``BitAllocator`` in somebody's own training loop."""

import copy
import io
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.allocate import InfeasibleBudget
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.quant import InputQuantizer, WeightQuantizer, quantized_layers
from hwbmpq.quant.functional import largest_code
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.values import Precision, Sensitivity


class Residual(nn.Module):
    """A stem, two blocks of which the second has a downsample layer, a head."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.third = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.hidden = nn.Linear(6, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.first(x))
        x = F.relu(self.third(F.relu(self.second(x))) + self.shortcut(x))
        return self.head(self.dropout(F.relu(self.hidden(x.mean((2, 3))))))


EXAMPLE = torch.zeros(1, 3, 8, 8)
ENDS = ("stem", "head")
FREE = ("first", "second", "third", "shortcut", "hidden")


def allocator_for(model: nn.Module, **options: Any) -> BitAllocator:
    options = {"target": "generic", "epochs": 6, "bits": (2, 4), **options}
    options = {"budgets": {"weight_memory": "85%"}, **options}
    return BitAllocator(model, EXAMPLE, **options)


def weight_bits(allocator: BitAllocator) -> dict[str, int]:
    return {name: precision.weight_bits for name, precision in allocator.bits.items()}


def network_bits(model: nn.Module) -> dict[str, Precision]:
    return {name: layer.precision for name, layer in quantized_layers(model)}


def batches(count: int, *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(6, 3, 8, 8, generator=generator), torch.randint(0, 5, (6,), generator=generator)


def train(
    model: nn.Module,
    allocator: BitAllocator,
    optimizer: torch.optim.Optimizer,
    given: Iterable[tuple[Tensor, Tensor]],
) -> None:
    for x, y in given:
        F.cross_entropy(model(x), y).backward()
        allocator.step()
        optimizer.step()
        optimizer.zero_grad()


def fake_step(allocator: BitAllocator, norms: Mapping[str, float]) -> None:
    """Gradients whose NBG is known: |g|·S·(2^q - 1) = the given number."""
    for name, layer in quantized_layers(allocator.model):
        widest = max(allocator.space.choices[name]).weight_bits
        weight = layer.weight.detach()
        scale = weight.abs().max() / largest_code(widest, signed=True)
        layer.weight.grad = torch.full_like(weight, norms[name]) / scale / (2**widest - 1)
    allocator.step()


# what is given


def test_the_loop_of_the_documentation() -> None:
    model = Residual()
    allocator = BitAllocator(
        model,
        EXAMPLE,
        target="mpic",
        budgets={"memory": "85%"},
        bits=(2, 4),
        epochs=4,
        warmup_epochs=1,
        interval_epochs=1,
        activation_bits="auto",
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(4):
        train(model, allocator, optimizer, batches(2))
        allocator.epoch_end()
    assert [decision.epoch for decision in allocator.history] == [1, 2, 3]
    assert allocator.allocation is allocator.history[-1].allocation


def test_modules_and_parameters_stay_the_users_own() -> None:
    model = Residual()
    modules, parameters = list(model.modules()), dict(model.named_parameters())
    allocator = allocator_for(model)
    allocator.decide(Sensitivity(method="enbg", scores=dict.fromkeys([*ENDS, *FREE], 1.0)))
    assert allocator.model is model
    assert [m for m in model.modules() if not isinstance(m, (InputQuantizer, WeightQuantizer))] == modules
    own = {name: p for name, p in model.named_parameters() if not name.endswith("alpha")}
    assert own.keys() == parameters.keys()
    assert all(own[name] is parameters[name] for name in parameters)


def test_all_layers_start_at_their_widest_candidate() -> None:
    model = Residual()
    allocator = allocator_for(model)
    assert weight_bits(allocator) == dict.fromkeys(ENDS, 16) | dict.fromkeys(FREE, 4)
    assert network_bits(model) == allocator.bits
    assert allocator.allocation is None
    assert not allocator.is_settled


def test_a_budget_that_cannot_be_met_is_found_before_anything_is_changed() -> None:
    model = Residual()
    with pytest.raises(InfeasibleBudget, match="memory"):
        allocator_for(model, budgets={"memory": "100bit"})
    assert type(model.first) is nn.Conv2d


def test_two_budgets_that_exclude_each_other_are_found_before_anything_is_changed() -> None:
    model = Residual()
    with pytest.raises(InfeasibleBudget):
        allocator_for(model, budgets={"memory": "90%", "bops": "1 BOP"})
    assert type(model.first) is nn.Conv2d


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 4, "warmup_epochs": 4}, "4 of 4 epochs are warm-up"),
        ({"epochs": 4, "warmup_epochs": 9}, "9 of 4 epochs are warm-up"),
        ({"epochs": 1}, "1 of 1 epochs are warm-up"),
        ({"decide_after": [2], "warmup_epochs": 2}, "decide_after says when"),
        ({"decide_after": [2], "interval_epochs": 2}, "decide_after says when"),
        ({"decide_after": [3, 2]}, "ascending"),
        ({"bits": (2, 12), "target": "mpic"}, "12-bit weights"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    model = Residual()
    with pytest.raises(HwbmpqError, match=message):
        allocator_for(model, **options)
    assert type(model.first) is nn.Conv2d


def test_an_unknown_method_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean bmpq"):
        allocator_for(Residual(), method="bmqp")


# when it decides, and by what


@pytest.mark.parametrize(
    ("options", "decided"),
    [
        ({"epochs": 10, "warmup_epochs": 4, "interval_epochs": 2}, [4, 6, 8]),
        ({"epochs": 9, "warmup_epochs": 2, "interval_epochs": 3}, [2, 5, 8]),
        ({"epochs": 8, "warmup_epochs": 2, "interval_epochs": 3}, [2, 5]),
        ({"epochs": 7, "warmup_epochs": 3}, [3, 6]),
        ({"epochs": 7, "interval_epochs": 3}, [3, 6]),
        ({"epochs": 20}, [2, 4, 6, 8, 10, 12, 14, 16, 18]),
        ({"epochs": 6, "decide_after": [1, 2, 5]}, [1, 2, 5]),
        ({"epochs": 10, "warmup_epochs": 4, "interval_epochs": 2, "method": "greedy"}, [4]),
        ({"epochs": 5, "method": "hpq", "bits": (4,)}, []),
        ({"epochs": 5, "method": "fp32"}, []),
    ],
    ids=str,
)
def test_the_epochs_that_end_with_a_decision(options: dict[str, Any], decided: list[int]) -> None:
    allocator = allocator_for(Residual(), **options)
    norms = dict.fromkeys([*ENDS, *FREE], 1.0)
    found = []
    for epoch in range(1, options["epochs"] + 1):
        fake_step(allocator, norms)
        if epoch <= min(decided, default=0):
            assert {weight_bits(allocator)[name] for name in FREE} == {4}
        decision = allocator.epoch_end()
        if decision is not None:
            assert decision.epoch == epoch
            found.append(epoch)
    assert found == decided


def test_enbg_is_the_mean_over_epochs_of_the_mean_over_steps() -> None:
    """Warm-up of 3, interval of 2: the first decision looks back on epochs 2 and 3, the second on 4 and 5."""
    allocator = allocator_for(Residual(), epochs=7, warmup_epochs=3, interval_epochs=2)
    steps = {1: [1000.0], 2: [1.0, 2.0, 6.0], 3: [5.0], 4: [0.5], 5: [1.0, 2.0], 6: [7.0], 7: [7.0]}
    running = {1: 1000.0, 2: 3.0, 3: 4.0, 4: 0.5, 5: 1.0, 6: 7.0, 7: 7.0}
    for values in steps.values():
        for value in values:
            fake_step(allocator, {**dict.fromkeys([*ENDS, *FREE], value), "third": 10 * value})
        expected = running[allocator.epoch + 1]
        assert allocator.sensitivities["first"] == pytest.approx(expected, rel=1e-5)
        allocator.epoch_end()
    decided = [(d.epoch, d.sensitivities["first"], d.sensitivities["third"]) for d in allocator.history]
    assert decided == [
        (3, pytest.approx(4.0, rel=1e-5), pytest.approx(40.0, rel=1e-5)),
        (5, pytest.approx(1.0, rel=1e-5), pytest.approx(10.0, rel=1e-5)),
    ]
    assert allocator.history[0].decided_by.scores == allocator.history[0].sensitivities


def test_between_intervals_the_sensitivities_are_those_of_the_one_before() -> None:
    allocator = allocator_for(Residual(), epochs=3, warmup_epochs=1)
    assert allocator.sensitivities == {}
    fake_step(allocator, dict.fromkeys([*ENDS, *FREE], 2.0))
    allocator.epoch_end()
    assert allocator.sensitivities == allocator.history[0].sensitivities
    fake_step(allocator, dict.fromkeys([*ENDS, *FREE], 3.0))
    assert allocator.sensitivities["first"] == pytest.approx(3.0, rel=1e-5)


def test_sensitive_layers_keep_their_bits_and_the_history_says_why() -> None:
    allocator = allocator_for(Residual(), epochs=4, warmup_epochs=1, interval_epochs=1)
    scores = {
        "stem": 9.0,
        "head": 9.0,
        "first": 5.0,
        "second": 4.0,
        "third": 1.0,
        "shortcut": 3.0,
        "hidden": 2.0,
    }
    low, high = {**scores, "hidden": 100.0}, {**scores, "third": 100.0}
    for norms in (low, high):
        fake_step(allocator, norms)
        allocator.epoch_end()
    first, second = allocator.history
    assert first.after["hidden"].weight_bits == 4
    assert first.after["third"].weight_bits == 2
    assert second.after["third"].weight_bits == 4
    assert second.before == first.after
    moved = {name for name in FREE if second.before[name] != second.after[name]}
    assert {move.layer for move in second.moves} == moved
    (why,) = (move.why for move in second.moves if move.layer == "third")
    assert why.startswith("rank 1 of 5 (was 5), ")


def test_an_epoch_without_gradients_names_the_missing_call() -> None:
    allocator = allocator_for(Residual(), epochs=3, warmup_epochs=1)
    with pytest.raises(HwbmpqError, match="no bit gradients were collected up to epoch 1") as error:
        allocator.epoch_end()
    assert "allocator.step()" in error.value.hint


# the budget


WIDTHS = st.sampled_from([(2, 4), (2, 8), (2, 4, 8), (3, 4, 6)])
SCORES = st.fixed_dictionaries(
    {
        name: st.one_of(
            st.just(0.0), st.floats(1e-30, 1e30), st.floats(0.5, 2.0), st.sampled_from([1.0, 2.0, 1e-12])
        )
        for name in [*ENDS, *FREE]
    }
)


def exact_total(table: Any, bits: Mapping[str, Precision]) -> Fraction:
    """Without the library's own sum."""
    rows = (
        Fraction(row.constant) + sum(Fraction(costs[bits[layer]]) for layer, costs in row.costs.items())
        for row in table.rows
    )
    return max(rows)


@settings(max_examples=60)
@given(
    widths=WIDTHS,
    share=st.floats(0, 1),
    cost=st.sampled_from(["memory", "bops"]),
    tie=st.sampled_from(["input", "sibling"]),
    scores=st.lists(SCORES, min_size=1, max_size=3),
)
def test_every_assignment_keeps_the_budget_the_ties_and_the_ends(
    widths: tuple[int, ...], share: float, cost: str, tie: str, scores: list[dict[str, float]]
) -> None:
    """Any sensitivity, any budget between the smallest and the largest cost, several decisions in a row."""
    smallest, largest = _range_of(widths, cost, tie)
    limit = smallest + share * (largest - smallest)
    limit = max(limit, float(smallest))
    model = Residual()
    allocator = allocator_for(model, bits=widths, budgets={cost: limit}, tie=tie, activation_bits="same")
    space = allocator.space
    assert space.limits == {cost: limit}
    for given_scores in scores:
        decision = allocator.decide(Sensitivity(method="enbg", scores=given_scores))
        bits = network_bits(model)
        assert bits == decision.after == allocator.bits
        total = exact_total(space.costs.tables[cost], bits)
        assert total <= Fraction(limit)
        assert decision.costs[cost] == total
        assert decision.slack[cost] == pytest.approx(float(Fraction(limit) - total), rel=1e-9, abs=1e-6)
        for group in space.graph.ties:
            assert len({bits[layer] for layer in group.layers}) == 1
        assert space.graph.ties
        assert all(bits[end].weight_bits == 16 for end in ENDS)
        assert all(bits[name].weight_bits in widths for name in FREE)


_RANGES: dict[Any, tuple[Any, Any]] = {}


def _range_of(widths: tuple[int, ...], cost: str, tie: str) -> tuple[Any, Any]:
    key = (widths, cost, tie)
    if key not in _RANGES:
        probe = allocator_for(
            Residual(), bits=widths, budgets={cost: "100%"}, tie=tie, activation_bits="same"
        )
        _RANGES[key] = probe.space.costs.smallest_and_largest(cost)
    return _RANGES[key]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_smallest_and_the_largest_budget_are_met_exactly(share: float) -> None:
    smallest, largest = _range_of((2, 4), "memory", "input")
    limit = largest if share else smallest
    allocator = allocator_for(Residual(), budgets={"memory": limit})
    allocator.decide(Sensitivity(method="enbg", scores=dict.fromkeys([*ENDS, *FREE], 1.0)))
    assert {weight_bits(allocator)[name] for name in FREE} == {4 if share else 2}


# the user's optimizer, scaler and habits


def switching_allocator(model: nn.Module) -> BitAllocator:
    """One that narrows some layers at the end of epoch 1."""
    return allocator_for(model, epochs=3, warmup_epochs=1, interval_epochs=1)


def state_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    return {
        (id(parameter), key): value
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
    }


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_optimizer_state_survives_a_switch(kind: str) -> None:
    model = Residual()
    allocator = switching_allocator(model)
    optimizer = (
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        if kind == "sgd"
        else torch.optim.Adam(model.parameters(), 0.01)
    )
    train(model, allocator, optimizer, batches(3))
    before = state_of(optimizer)
    values = {key: copy.deepcopy(value) for key, value in before.items()}
    decision = allocator.epoch_end()
    assert decision is not None
    assert decision.moves
    after = state_of(optimizer)
    assert after.keys() == before.keys()
    for key, value in after.items():
        assert value is before[key]
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(values[key]))


def test_the_step_after_a_switch_uses_the_momentum() -> None:
    model = Residual()
    allocator = switching_allocator(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train(model, allocator, optimizer, batches(3))
    decision = allocator.epoch_end()
    assert decision is not None
    layer = model.get_submodule(decision.moves[0].layer)
    weight, momentum = layer.weight.detach().clone(), optimizer.state[layer.weight]["momentum_buffer"].clone()
    ((x, y),) = batches(1, seed=5)
    F.cross_entropy(model(x), y).backward()
    gradient = layer.weight.grad.clone()
    allocator.step()
    optimizer.step()
    assert float(momentum.abs().max()) > 0
    assert torch.allclose(layer.weight, weight - 0.05 * (0.9 * momentum + gradient), rtol=1e-5, atol=1e-8)


def test_float_master_weights_do_not_change_at_a_switch() -> None:
    model = Residual()
    allocator = switching_allocator(model)
    fake_step(allocator, dict.fromkeys([*ENDS, *FREE], 1.0))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert allocator.epoch_end().moves  # type: ignore[union-attr]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("method", ["bmpq", "ad", "greedy"])
def test_copied_and_pickled_models_compute_the_same(method: str) -> None:
    model = Residual()
    allocator = allocator_for(model, method=method, epochs=3, warmup_epochs=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(2):
        train(model, allocator, optimizer, batches(5))
        allocator.epoch_end()
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        ((x, _),) = batches(1, seed=9)
        expected = copy.deepcopy(model).eval()(x)
        loaded = torch.load(buffer, weights_only=False).eval()
        assert torch.equal(loaded(x), expected)
        assert network_bits(loaded) == network_bits(model)
        model.eval()
        assert torch.equal(model(x), expected)
        model.train()


def test_a_copy_does_not_feed_the_original_allocator() -> None:
    model = Residual()
    allocator = switching_allocator(model)
    fake_step(allocator, dict.fromkeys([*ENDS, *FREE], 1.0))
    before = allocator.sensitivities
    twin = copy.deepcopy(model)
    ((x, y),) = batches(1)
    F.cross_entropy(twin(x), y).backward()
    assert allocator.sensitivities == before


def test_a_float_checkpoint_loads_after_preparation() -> None:
    trained = Residual()
    model = Residual()
    allocator_for(model)
    model.load_state_dict(trained.state_dict())
    assert torch.equal(model.third.weight, trained.third.weight)


def test_a_model_with_its_widths_comes_back_from_its_state_dict() -> None:
    model = Residual()
    allocator = switching_allocator(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    train(model, allocator, optimizer, batches(9))
    allocator.epoch_end()
    fresh = Residual()
    switching_allocator(fresh)
    fresh.load_state_dict(model.state_dict())
    assert network_bits(fresh) == network_bits(model)
    ((x, _),) = batches(1, seed=9)
    assert torch.equal(fresh.eval()(x), model.eval()(x))


def test_a_step_after_the_first_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Residual()
    allocator = allocator_for(model)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("waits for the device")

    train(model, allocator, torch.optim.SGD(model.parameters(), 0.05), batches(1))
    for x, y in batches(2):
        F.cross_entropy(model(x), y).backward()
        with monkeypatch.context() as patch:
            for name in "item tolist numpy cpu __float__ __int__ __bool__ __index__".split():
                patch.setattr(Tensor, name, refuse)
            allocator.step()
    assert allocator.sensitivities


def test_a_scaler_and_accumulated_gradients_lead_to_the_same_decision() -> None:
    """Two micro-batches under a scaler, against the whole batch without."""
    decisions = []
    start = Residual().state_dict()
    for scaled in (False, True):
        model = Residual().double()
        model.load_state_dict(start)
        allocator = BitAllocator(
            model, EXAMPLE.double(), target="generic", bits=(2, 4), budgets={"memory": "85%"}, epochs=3
        )
        ((x, y),) = batches(1)
        for _ in range(8):
            model(x.double())  # α comes to rest
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=scaled)
        for part in (slice(0, 3), slice(3, 6)) if scaled else (slice(0, 6),):
            loss = F.cross_entropy(model(x[part].double()), y[part], reduction="sum") / len(y)
            scaler.scale(loss).backward()
        allocator.step(scaler)
        decisions.append(allocator.epoch_end())
    plain, scaled_one = decisions
    assert scaled_one.sensitivities == pytest.approx(plain.sensitivities, rel=1e-9)
    assert scaled_one.after == plain.after


def test_objective_error_has_an_expected_loss_for_every_width() -> None:
    model = Residual()
    allocator = allocator_for(model, epochs=3, warmup_epochs=1, objective="error", bits=(2, 4, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train(model, allocator, optimizer, batches(3))
    decision = allocator.epoch_end()
    assert decision is not None
    for name in FREE:
        errors = decision.decided_by.errors[name]
        assert errors[2] > errors[4] > errors[8] > 0


class StandardisedConv(nn.Conv2d):
    """As timm's StdConv2d: the weight that is multiplied with is computed in forward."""

    def forward(self, input: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


def test_objective_error_rounds_the_weight_that_enters_the_quantizer() -> None:
    """Not the parameter: here it is the same weight a hundred times smaller, as standardising makes no difference."""
    found = []
    for factor in (1.0, 0.01):
        torch.manual_seed(0)
        model = Residual()
        model.first = StandardisedConv(4, 4, 3, padding=1, bias=False)
        with torch.no_grad():
            model.first.weight *= factor
        allocator = allocator_for(model, epochs=3, warmup_epochs=1, objective="error")
        for x, y in batches(3):
            F.cross_entropy(model(x), y).backward()
            allocator.step()
            model.zero_grad()
        decision = allocator.epoch_end()
        assert decision is not None
        found.append(decision.decided_by.errors["first"][2])
    assert found[1] == pytest.approx(found[0], rel=1e-2)


# saved and loaded


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


@pytest.mark.parametrize("method", ["bmpq", "ad", "random", "greedy", "reversed", "fp32"])
@pytest.mark.parametrize("stop", [0, 3, 4, 7, 8, 11])
def test_a_saved_allocator_decides_as_if_it_had_gone_on(method: str, stop: int) -> None:
    """Four steps an epoch; stopped at the start, within epochs, and at their ends."""
    given = list(batches(16))

    def run(model: nn.Module, allocator: BitAllocator, first: int, last: int) -> None:
        for number in range(first, last):
            x, y = given[number]
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            allocator.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.05 * parameter.grad
            if number % 4 == 3:
                allocator.epoch_end()

    options = {"method": method, "epochs": 4, "warmup_epochs": 2, "interval_epochs": 1}
    start = Residual().state_dict()
    models = [Residual() for _ in range(3)]
    for model in models:
        model.load_state_dict(start)
    whole, first, second = (allocator_for(model, **options) for model in models)
    run(models[0], whole, 0, 16)
    run(models[1], first, 0, stop)
    state = through_a_file({"model": models[1].state_dict(), "allocator": first.state_dict()})
    models[2].load_state_dict(state["model"])
    second.load_state_dict(state["allocator"])
    assert second.sensitivities == first.sensitivities
    assert network_bits(models[2]) == network_bits(models[1])
    run(models[2], second, stop, 16)
    assert without_times(second) == without_times(whole)
    for name, value in models[0].state_dict().items():
        assert torch.equal(models[2].state_dict()[name], value), name


def without_times(allocator: BitAllocator) -> list[dict[str, Any]]:
    found = [decision.to_dict() for decision in allocator.history]
    for entry in found:
        entry["allocation"].pop("seconds")
    return found


def test_a_loaded_state_stays_as_it_was() -> None:
    first, second = (allocator_for(Residual(), epochs=4) for _ in range(2))
    fake_step(first, dict.fromkeys([*ENDS, *FREE], 1.0))
    before = first.sensitivities
    second.load_state_dict(first.state_dict())
    fake_step(second, dict.fromkeys([*ENDS, *FREE], 5.0))
    assert first.sensitivities == before


@pytest.mark.parametrize("state", [{}, {"format": "other/1"}, [], None], ids=str)
def test_a_foreign_state_is_refused(state: Any) -> None:
    with pytest.raises(HwbmpqError, match="not the state of a BitAllocator"):
        allocator_for(Residual()).load_state_dict(state)


@pytest.mark.parametrize(
    "other",
    [{"budgets": {"memory": "90%"}}, {"bits": (2, 8)}, {"target": "mpic"}, {"method": "greedy"}],
    ids=str,
)
def test_a_state_of_another_question_is_refused_and_changes_nothing(other: dict[str, Any]) -> None:
    first, second = allocator_for(Residual()), allocator_for(Residual(), **other)
    fake_step(first, dict.fromkeys([*ENDS, *FREE], 1.0))
    first.epoch_end()
    with pytest.raises(HwbmpqError, match="another network, device or budget"):
        second.load_state_dict(first.state_dict())
    assert (second.epoch, second.history) == (0, [])
