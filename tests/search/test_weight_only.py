"""Networks with recurrent layers, attention, embeddings and functional weights, from budget to widths."""

import pytest
import torch
from torch.nn import functional as F
from weight_only_networks import NETWORKS

import hwbmpq
from hwbmpq.hardware import layer_candidates, load_profile, trained_precisions, widths
from hwbmpq.quant import quantized_layers
from hwbmpq.search.pins import fixed_layers
from hwbmpq.search.space import build_search_space
from hwbmpq.values import Precision

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


@pytest.mark.parametrize("name", NETWORKS)
def test_every_device_has_widths_for_them(name: str) -> None:
    make, example = NETWORKS[name]
    graph = hwbmpq.describe(make(), example())
    for target in profiles_to_try():
        profile = load_profile(target)
        choices = layer_candidates(graph, profile)
        for layer in graph:
            if layer.weight_only:
                assert choices[layer.name]
                assert {precision.activation_bits for precision in choices[layer.name]} == {32}
                if layer.is_end:
                    op = "linear" if layer.kind == "embedding" else layer.kind
                    widest = widths.first_last_precision(profile, op).weight_bits
                    assert [precision.weight_bits for precision in choices[layer.name]] == [widest]
        widest_bits = {layer: max(options) for layer, options in choices.items()}
        trained = trained_precisions(graph, profile, widest_bits)
        assert all(trained[layer.name].activation_bits == 32 for layer in graph if layer.weight_only)


def profiles_to_try() -> list[str]:
    return ["generic", "stm32h743", "mpic", "jetson_nano"]


def test_given_widths_are_theirs_too() -> None:
    make, example = NETWORKS["gru"]
    choices = layer_candidates(hwbmpq.describe(make(), example()), load_profile("generic"), [3, 5])
    assert choices["gru.weight_hh_l0"] == tuple(
        Precision(weight_bits=bits, activation_bits=32) for bits in (3, 5)
    )


def test_pins_reach_them_and_what_shares_their_weight() -> None:
    make, example = NETWORKS["tied embedding"]
    graph, profile = hwbmpq.describe(make(), example()), load_profile("generic")
    fixed = fixed_layers(graph, profile, {"embedding": 8, "positions": "W4A8"}, [])
    choices = fixed.choices(graph, profile, "same")
    assert {name: str(options[0]) for name, options in choices.items()} == {
        "embedding": "W8A32",
        "positions": "W4A32",
        "head": "W8A8",
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_loop_measures_and_decides_all_of_them(name: str) -> None:
    make, example = NETWORKS[name]
    model, inputs = make(), example()
    allocator = hwbmpq.BitAllocator(
        model,
        inputs,
        target="generic",
        bits=[2, 4, 8],
        epochs=2,
        warmup_epochs=1,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    labels = torch.zeros(len(inputs), dtype=torch.long)
    for _ in range(2):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            allocator.step()
            optimizer.step()
        allocator.epoch_end()
    scores = allocator.history[0].decided_by.scores
    held = [layer for layer in allocator.space.graph if layer.weight_only]
    assert all(scores[layer.name] > 0 for layer in held)
    found = {layer_name: layer.precision for layer_name, layer in quantized_layers(model)}
    assert all(found[layer.name].activation_bits == 32 for layer in held)
    assert {found[layer.name].weight_bits for layer in held if not layer.is_end} <= {2, 4, 8}


def test_the_width_of_activations_is_that_of_layers_that_round_them() -> None:
    make, example = NETWORKS["gru"]
    profile = load_profile("generic")
    recurrent = build_search_space(hwbmpq.describe(make(), example()), profile, bits=[4, 8])
    make, example = NETWORKS["encoder"]
    mixed = build_search_space(hwbmpq.describe(make(), example()), profile, bits=[4, 8], activation_bits=8)
    assert recurrent.costs.label(4) == "W4A32"  # all that may be chosen is weight-only
    assert mixed.costs.label(4) == "W4A8"
    assert mixed.costs.typical(8) == Precision(weight_bits=8, activation_bits=8)
