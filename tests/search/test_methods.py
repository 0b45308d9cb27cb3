"""What each method decides, on a network whose sizes, densities and sensitivities are known."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.quant import quantized_layers
from hwbmpq.registry import METHODS
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.decisions import Decision
from hwbmpq.search.methods import get_method
from hwbmpq.values import Sensitivity

ENDS = ("stem", "head")
SIZES = {"small": 24, "middle": 48, "large": 96}
"""Weights of the layers that have a choice; each bit of width costs as many bits of memory."""


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 6)
        self.small = nn.Linear(6, 4)
        self.middle = nn.Linear(4, 12)
        self.large = nn.Linear(12, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.stem, self.small, self.middle, self.large):
            x = layer(x).relu()
        return self.head(x)


FIXED_BITS = 16 * (3 * 6 + 8 * 5)
SMALLEST = FIXED_BITS + 2 * sum(SIZES.values())


def allocator_for(method: str, *, extra_bits: int = 0, **options: Any) -> BitAllocator:
    """``extra_bits`` of memory above every layer at 2 bits."""
    options = {
        "epochs": 4,
        "bits": (2, 4),
        "budgets": {"weight_memory": float(SMALLEST + extra_bits)},
        **options,
    }
    return BitAllocator(Chain(), torch.zeros(1, 3), target="generic", method=method, **options)


def decide(allocator: BitAllocator, scores: Mapping[str, float] | None = None) -> Decision:
    scores = {**dict.fromkeys([*ENDS, *SIZES], 1.0), **(scores or {})}
    return allocator.decide(Sensitivity(method="enbg", scores=scores))


def free_bits(decision: Decision) -> dict[str, int]:
    return {name: decision.after[name].weight_bits for name in SIZES}


def test_the_sizes_are_as_this_file_says() -> None:
    space = allocator_for("bmpq").space
    assert {layer.name: layer.parameters for layer in space.graph if layer.name in SIZES} == SIZES
    assert space.costs.smallest_and_largest("weight_memory") == (SMALLEST, SMALLEST + 2 * sum(SIZES.values()))


def test_the_methods_that_the_command_line_offers() -> None:
    assert set(METHODS.names()) == {"bmpq", "fp32", "hpq", "ad", "hawq", "random", "greedy", "reversed"}
    assert all(name == get_method(name).name and get_method(name).summary for name in METHODS.names())


def test_an_unknown_method_names_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="no method named 'best'") as error:
        get_method("best")
    assert "bmpq, fp32, hpq" in error.value.hint


@pytest.mark.parametrize(
    ("extra_bits", "scores", "expected"),
    [
        (2 * 96, {"large": 5.0}, {"small": 2, "middle": 2, "large": 4}),
        (2 * 96, {"small": 5.0, "large": 5.5}, {"small": 4, "middle": 4, "large": 2}),
        (2 * 96 - 1, {"large": 99.0}, {"small": 4, "middle": 4, "large": 2}),
        (0, {"large": 5.0}, {"small": 2, "middle": 2, "large": 2}),
    ],
)
def test_bmpq_gives_bits_where_their_value_adds_up(
    extra_bits: int, scores: dict[str, float], expected: dict[str, int]
) -> None:
    assert free_bits(decide(allocator_for("bmpq", extra_bits=extra_bits), scores)) == expected


def test_greedy_widens_the_smallest_layers_first_whatever_their_sensitivity() -> None:
    decision = decide(allocator_for("greedy", extra_bits=2 * 96), {"large": 99.0})
    assert free_bits(decision) == {"small": 4, "middle": 4, "large": 2}


def test_reversed_widens_the_least_sensitive_layers_first() -> None:
    decision = decide(
        allocator_for("reversed", extra_bits=2 * 96), {"small": 3.0, "middle": 2.0, "large": 0.5}
    )
    assert free_bits(decision) == {"small": 2, "middle": 2, "large": 4}


def test_random_depends_on_the_seed_only_and_uses_the_budget() -> None:
    found = set()
    for seed in range(12):
        decisions = [
            decide(allocator_for("random", extra_bits=2 * 96, seed=seed), {"small": score})
            for score in (0.1, 9.0)
        ]
        assert decisions[0].after == decisions[1].after
        bits = free_bits(decisions[0])
        left = 2 * 96 - sum((bits[name] - 2) * size for name, size in SIZES.items())
        assert left >= 0
        assert not any(bits[name] == 2 and 2 * size <= left for name, size in SIZES.items())
        found.add(tuple(bits.values()))
    assert len(found) > 1


@pytest.mark.parametrize("method", [m for m in METHODS.names() if get_method(m).keeps_budget and m != "hawq"])
@pytest.mark.parametrize("extra_bits", [0, 1, 47, 48, 150, 335, 336])
def test_methods_that_keep_a_budget_keep_it(method: str, extra_bits: int) -> None:
    decision = decide(allocator_for(method, extra_bits=extra_bits), {"large": 3.0})
    assert decision.costs["weight_memory"] <= SMALLEST + extra_bits
    assert decision.slack["weight_memory"] == SMALLEST + extra_bits - decision.costs["weight_memory"]


@pytest.mark.parametrize("method", ["fp32", "hpq", "ad"])
def test_methods_without_a_budget_accept_one_that_cannot_be_met(method: str) -> None:
    bits = {"bits": (4,)} if method == "hpq" else {}
    allocator = allocator_for(method, budgets={"weight_memory": 1.0}, **bits)
    assert (
        f"the method {method} does not enforce budgets: weight_memory may exceed its limit"
        in allocator.space.remarks
    )


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_hpq_has_one_width_from_the_first_step(bits: int) -> None:
    allocator = allocator_for("hpq", bits=(bits,))
    assert {name: p.weight_bits for name, p in allocator.bits.items()} == dict.fromkeys(
        ENDS, 16
    ) | dict.fromkeys(SIZES, bits)
    assert allocator.is_settled
    assert allocator.epoch_end() is None


def test_hpq_with_several_widths_is_an_error() -> None:
    with pytest.raises(HwbmpqError, match="hpq"):
        allocator_for("hpq", bits=(2, 4))


def test_fp32_computes_as_the_float_network() -> None:
    torch.manual_seed(0)
    plain = Chain()
    torch.manual_seed(0)
    allocator = allocator_for("fp32")
    assert {str(precision) for precision in allocator.bits.values()} == {"W32A32"}
    allocator.model.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(allocator.model(x), plain(x))
    assert allocator.is_settled
    assert allocator.history == []


def set_densities(model: Chain, densities: Mapping[str, float]) -> None:
    """Outputs of a layer are positive for the given share of its neurons, else negative, whatever comes in."""
    with torch.no_grad():
        for name, density in densities.items():
            layer = model.get_submodule(name)
            layer.weight.mul_(1e-3)
            count = round(density * len(layer.bias))
            layer.bias.copy_(torch.where(torch.arange(len(layer.bias)) < count, 1.0, -1.0))


def test_ad_multiplies_widths_by_densities() -> None:
    """Of 8 bits: 0.5 makes 4, 0.25 makes 2, 1 keeps 8; what the device lacks is rounded up."""
    allocator = allocator_for("ad", bits=(2, 4, 8), epochs=3, warmup_epochs=1)
    set_densities(allocator.model, {"small": 0.25, "middle": 0.5, "large": 1.0})
    for _ in range(2):
        allocator.model(torch.randn(10, 3))
    decision = allocator.epoch_end()
    assert decision is not None
    scores = {name: decision.decided_by.scores[name] for name in SIZES}
    assert scores == {"small": 0.25, "middle": 0.5, "large": 1.0}
    assert free_bits(decision) == {"small": 2, "middle": 4, "large": 8}
    assert all(decision.after[name].weight_bits == 16 for name in ENDS)
    assert decision.decided_by.method == "activation_density"


def test_ad_rounds_up_to_a_width_that_the_device_has() -> None:
    """0.625 of 8 is 5; between 4 and 8 there is none."""
    allocator = allocator_for("ad", bits=(2, 4, 8), epochs=3, warmup_epochs=1)
    set_densities(allocator.model, {"small": 1.0, "middle": 1.0, "large": 0.625})
    allocator.model(torch.randn(10, 3))
    decision = allocator.epoch_end()
    assert decision is not None
    assert free_bits(decision)["large"] == 8


def test_ad_looks_at_the_last_epoch_of_the_warmup_only() -> None:
    allocator = allocator_for("ad", bits=(2, 4, 8), epochs=4, warmup_epochs=2)
    for densities in (
        {"small": 1.0, "middle": 1.0, "large": 1.0},
        {"small": 0.25, "middle": 0.5, "large": 0.5},
    ):
        set_densities(allocator.model, densities)
        allocator.model(torch.randn(10, 3))
        decision = allocator.epoch_end()
    assert decision is not None
    assert {name: decision.decided_by.scores[name] for name in SIZES} == densities


def test_ad_leaves_no_hooks_behind() -> None:
    allocator = allocator_for("ad", bits=(2, 4, 8), epochs=3, warmup_epochs=1)
    allocator.model(torch.randn(10, 3))
    allocator.epoch_end()
    modules = list(allocator.model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in modules)


def labelled() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 3, generator=generator), torch.randint(0, 5, (8,), generator=generator))]


def test_hawq_needs_labelled_batches() -> None:
    with pytest.raises(HwbmpqError, match=r"hawq .*needs labelled batches"):
        decide(allocator_for("hawq", extra_bits=2 * 96))


def test_hawq_decides_by_hessian_traces_within_the_budget() -> None:
    allocator = allocator_for("hawq", extra_bits=2 * 96, calibration=labelled)
    before = {name: value.clone() for name, value in allocator.model.state_dict().items()}
    torch.manual_seed(7)
    state = torch.get_rng_state()
    decision = decide(allocator, {"large": 42.0})
    assert decision.decided_by.method == "hessian_trace"
    assert decision.objective == "hawq"
    assert all(score >= 0 for score in decision.decided_by.scores.values())
    assert decision.sensitivities["large"] == 42.0
    assert decision.slack["weight_memory"] >= 0
    assert torch.equal(torch.get_rng_state(), state)
    extra = [name for name in before if not name.endswith("_extra_state")]
    assert all(torch.equal(allocator.model.state_dict()[name], before[name]) for name in extra)


@pytest.mark.parametrize("method", ["bmpq", "random", "greedy", "reversed"])
def test_the_network_has_what_was_decided(method: str) -> None:
    allocator = allocator_for(method, extra_bits=100)
    decision = decide(allocator)
    assert {name: layer.precision for name, layer in quantized_layers(allocator.model)} == dict(
        decision.after
    )


LARGE_FIRST, MIDDLE_FIRST = {"large": 12.0, "middle": 9.0}, {"large": 10.0, "middle": 11.0}
"""Room for the large layer, or for the other two: they are worth about the same."""


def test_without_inertia_layers_of_about_the_same_worth_swap_at_every_decision() -> None:
    allocator = allocator_for("bmpq", extra_bits=2 * 96)
    moved = [len(decide(allocator, scores).moves) for scores in (LARGE_FIRST, MIDDLE_FIRST) * 2]
    assert all(moved)


def test_with_inertia_layers_stay_unless_a_move_pays() -> None:
    allocator = allocator_for("bmpq", extra_bits=2 * 96, inertia=0.25)
    first = decide(allocator, LARGE_FIRST)  # nothing is held before the first decision
    assert free_bits(first) == {"small": 2, "middle": 2, "large": 4}
    kept = decide(allocator, MIDDLE_FIRST)
    assert kept.moves == ()
    assert kept.allocation.inertia == 0.25
    assert kept.allocation.objective < kept.allocation.bound
    assert kept.allocation.bound == pytest.approx(
        decide(allocator_for("bmpq", extra_bits=2 * 96), MIDDLE_FIRST).allocation.objective
    )
    assert Decision.from_dict(kept.to_dict()) == kept
    moved = decide(allocator, {"large": 10.0, "middle": 20.0})
    assert free_bits(moved)["middle"] == 4
    assert free_bits(moved)["large"] == 2
    assert moved.allocation.inertia == 0


def test_the_budget_holds_whatever_the_inertia() -> None:
    allocator = allocator_for("bmpq", extra_bits=2 * 96, inertia=0.9)
    for scores in (LARGE_FIRST, MIDDLE_FIRST, {"small": 50.0}, {"middle": 900.0}):
        decision = decide(allocator, scores)
        assert decision.costs["weight_memory"] <= SMALLEST + 2 * 96
