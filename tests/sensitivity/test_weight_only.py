"""Every sensitivity knows layers of which only the weight is quantized."""

import pytest
import torch
from torch.nn import functional as F
from weight_only_networks import NETWORKS

import hwbmpq
from hwbmpq.quant import prepare, quantized_layers
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.sensitivity.enbg import BitGradientCollector, bit_gradient_norm
from hwbmpq.sensitivity.registry import methods
from hwbmpq.training.ptq.rounding import round_weights
from hwbmpq.values import Precision

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
WIDTHS = [2, 4, 8]


@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_gets_a_score(name: str, method: str) -> None:
    make, example = NETWORKS[name]
    model, inputs = make(), example()
    layers = hwbmpq.describe(model, inputs).layers
    labels = torch.arange(len(inputs)) % 5
    found = measure_sensitivity(
        model,
        layers,
        [(inputs, labels)],
        method=method,
        precisions={
            layer.name: Precision(weight_bits=8, activation_bits=32 if layer.weight_only else 8)
            for layer in layers
        },
        widths={layer.name: WIDTHS for layer in layers},
    )
    assert list(found.scores) == [layer.name for layer in layers]
    assert all(torch.isfinite(torch.tensor(score)) for score in found.scores.values())
    if method in ("enbg", "weight_error", "divergence"):
        assert all(found.scores[layer.name] > 0 for layer in layers)
        assert all(list(found.errors[layer.name]) == WIDTHS for layer in layers)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_collector_reads_the_gradient_of_the_parameter(name: str) -> None:
    make, example = NETWORKS[name]
    model, inputs = make(), example()
    graph = hwbmpq.describe(model, inputs)
    prepare(model, graph)
    collector = BitGradientCollector(model, {layer.name: 8 for layer in graph})
    F.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long)).backward()
    collector.add_step()
    found, _ = collector.close_epoch()
    weights = {layer_name: layer.weight for layer_name, layer in quantized_layers(model)}
    holders = [id(weight) for weight in weights.values()]
    for layer_name, weight in weights.items():
        expected = bit_gradient_norm(weight.grad, weight, 8) / holders.count(id(weight))  # type: ignore[arg-type, union-attr]
        assert found[layer_name] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_can_be_rounded_without_training(name: str) -> None:
    make, example = NETWORKS[name]
    model, inputs = make().eval(), example()
    graph = hwbmpq.describe(model, inputs)
    prepare(model, graph, precision=(3, 32), first_last_precision=(8, 32))
    before = model(inputs).detach()
    round_weights(model, [inputs])
    held = {layer.name for layer in graph if layer.weight_only and not layer.shares_weight_with}
    for layer_name, layer in quantized_layers(model):
        shared = sum(other.weight is layer.weight for _, other in quantized_layers(model)) > 1
        if layer_name in held and not shared:
            assert torch.equal(layer.weight_quantizer(layer.weight), layer.weight)
    assert not torch.equal(model(inputs), before)
