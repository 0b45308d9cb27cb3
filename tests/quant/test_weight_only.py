"""Life of a network whose weights are quantized without layer modules around them."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from weight_only_networks import NETWORKS, Encoder, FunctionalHead, Gru, Lstm

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import as_float, assign, fake_quantize_weight, parameter_groups, prepare, quantized_layers
from hwbmpq.quant.layers import eval_mode
from hwbmpq.values import Precision

FLOAT = 32
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def prepared(name: str, **settings: object) -> tuple[nn.Module, Tensor]:
    """A network with uncalibrated inputs in float, so that only weights matter."""
    make, example = NETWORKS[name]
    model, values = make(), example()
    settings = {"precision": (4, FLOAT), "first_last_precision": (8, FLOAT)} | settings
    prepare(model, hwbmpq.describe(model, values), **settings)  # type: ignore[arg-type]
    return model, values


def with_rounded_weights(model: nn.Module) -> nn.Module:
    """The float network with every layer's weight replaced by what its quantizer makes of it."""
    twin = copy.deepcopy(model)
    rounded = {
        id(layer.weight): layer.weight_quantizer(layer.weight).detach() for _, layer in quantized_layers(twin)
    }
    for _, layer in quantized_layers(twin):
        layer.weight.data = rounded[id(layer.weight)]  # type: ignore[union-attr]
    return twin


@pytest.mark.parametrize("per_channel", [False, True], ids=["per layer", "per channel"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_computes_with_the_rounded_weights(name: str, per_channel: bool) -> None:
    model, values = prepared(name, per_channel=per_channel)
    reference = with_rounded_weights(model)
    with as_float(model):
        in_float = model(values)
    with as_float(reference):
        expected = reference(values)
    torch.testing.assert_close(model(values), expected)
    assert not torch.allclose(model(values), in_float)


@pytest.mark.parametrize("name", NETWORKS)
def test_in_evaluation_too_where_torch_has_fused_kernels(name: str) -> None:
    model, values = prepared(name)
    expected = model(values).detach()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(values), expected)
    with torch.inference_mode():
        torch.testing.assert_close(model(values), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_weight_learns(name: str) -> None:
    model, values = prepared(name)
    model(values).square().sum().backward()
    for layer_name, layer in quantized_layers(model):
        gradient = layer.weight.grad  # type: ignore[union-attr]
        assert gradient is not None, layer_name
        assert bool(gradient.any()), layer_name
    groups = parameter_groups(model, weight_decay=0.1, alpha_weight_decay=0.0)
    own = {id(p) for p in groups[0]["params"]}
    assert own.issuperset(id(layer.weight) for _, layer in quantized_layers(model))


@pytest.mark.parametrize("name", NETWORKS)
def test_copies_pickles_and_state_dicts_keep_everything(name: str) -> None:
    model, values = prepared(name)
    expected = model(values)
    assert torch.equal(copy.deepcopy(model)(values), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(values), expected)
    twin, _ = prepared(name, precision=(2, FLOAT))
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(values), expected)
    assert [layer.precision for _, layer in quantized_layers(twin)] == [
        layer.precision for _, layer in quantized_layers(model)
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_float_checkpoints_are_those_of_the_float_network(name: str) -> None:
    make, _example = NETWORKS[name]
    torch.manual_seed(1)
    source = make()
    model, values = prepared(name)
    floats = {key: type(value) for key, value in source.named_parameters()}
    found = {key: type(value) for key, value in model.named_parameters() if "quantizer" not in key}
    assert found == floats
    assert set(source.state_dict()) <= set(model.state_dict())
    model.load_state_dict(source.state_dict())
    with as_float(model):
        assert [type(module) for module in model.modules() if type(module) in map(type, source.modules())]
        assert torch.equal(model(values), source(values))


@pytest.mark.parametrize("name", NETWORKS)
def test_number_formats_and_devices_may_change(name: str) -> None:
    model, values = prepared(name)
    double = model(values).double()
    model.double()
    result = model(values.double() if values.is_floating_point() else values)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, double, atol=2e-3, rtol=1e-2)
    model.to(torch.bfloat16)
    half = model(values.to(torch.bfloat16) if values.is_floating_point() else values)
    assert half.dtype == torch.bfloat16
    model.to("meta")
    copy.deepcopy(model)


def test_a_moved_recurrent_layer_still_learns_and_copies() -> None:
    model, values = prepared("lstm")
    model.double().float()
    assert all(isinstance(weight, nn.Parameter) for weight in model.lstm._flat_weights)  # type: ignore[union-attr]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model(values)
    before.sum().backward()
    optimizer.step()
    assert not torch.equal(model(values), before)
    copy.deepcopy(model)


def test_widths_are_assigned_and_inputs_stay_in_float() -> None:
    model, _ = prepared("gru")
    assign(model, {"gru.weight_hh_l0": 2, "gru.weight_ih_l0": Precision(weight_bits=8, activation_bits=32)})
    found = {name: layer.precision for name, layer in quantized_layers(model)}
    assert found["gru.weight_hh_l0"] == Precision(weight_bits=2, activation_bits=32)
    assert model.gru.weight_hh_l0.unique().numel() == 3  # type: ignore[union-attr]
    with pytest.raises(HwbmpqError, match="no quantized layer named gru;"):
        assign(model, {"gru": 4})
    with pytest.raises(HwbmpqError, match="quantized already"):
        prepare(model, hwbmpq.describe(model, torch.randn(1, 7, 10)))


def test_reading_the_attribute_gives_the_quantized_weight() -> None:
    model, _ = prepared("functional")
    parameter = dict(model.named_parameters())["kernel"]
    assert torch.equal(model.kernel, fake_quantize_weight(parameter, 4))
    assert isinstance(parameter, nn.Parameter)
    assert not isinstance(model.kernel, nn.Parameter)


def test_changes_of_the_parameter_count() -> None:
    """Optimizers, initialisation and pruning get at parameters by ``parameters`` and ``named_parameters``."""
    model, values = prepared("functional head")
    before = model(values)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.constant_(parameter, 0.5)
    assert float(model.embedding.weight.detach().unique()) == pytest.approx(0.5)  # type: ignore[union-attr, operator]
    assert not torch.equal(model(values), before)


def test_a_parameter_can_be_replaced_and_tied_at_run_time() -> None:
    model, values = prepared("gru")
    model.gru.weight_hh_l1 = dict(model.named_parameters())["gru.weight_hh_l0"]  # type: ignore[union-attr]
    assert torch.equal(model.gru.weight_hh_l1, model.gru.weight_hh_l0)  # type: ignore[union-attr]
    model(values)
    with pytest.raises(TypeError, match="cannot assign"):
        model.gru.weight_hh_l1 = model.gru.weight_hh_l0  # type: ignore[union-attr]


def test_functional_calls_take_other_parameters() -> None:
    model, values = prepared("functional")
    others = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    result = torch.func.functional_call(model, others, values)
    twin = copy.deepcopy(model)
    for name, parameter in twin.named_parameters():
        parameter.data = others[name]
    torch.testing.assert_close(result, twin(values))


def test_copies_of_data_parallel_training_are_quantized() -> None:
    model, _ = prepared("gru")
    replica = model.gru._replicate_for_data_parallel()  # type: ignore[union-attr, operator]
    weights = {
        name: parameter.detach().clone() for name, parameter in model.gru.named_parameters(recurse=False)
    }  # type: ignore[union-attr, operator]
    for name, weight in weights.items():
        setattr(replica, name, weight)  # as torch.nn.parallel.replicate does
    steps = torch.randn(2, 7, 8)
    torch.testing.assert_close(replica(steps)[0], model.gru(steps)[0].detach())  # type: ignore[operator]


def test_torch_compile_gives_the_same_or_leaves_the_module_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("functional", "encoder", "gru", "tied embedding"):
            model, values = prepared(name)
            model.eval()
            with torch.no_grad():
                expected = model(values)
                compiled = torch.compile(model, backend="eager")
                torch.testing.assert_close(compiled(values), expected)
            torch.compiler.reset()


def test_learning_rates_of_a_step_match_the_straight_through_estimate() -> None:
    """The gradient of the parameter is that of the rounded weight."""
    model, values = prepared("functional")
    model(values).sum().backward()
    parameter = dict(model.named_parameters())["values"]
    twin = copy.deepcopy(model)
    rounded = fake_quantize_weight(dict(twin.named_parameters())["values"].detach(), 4).requires_grad_()
    with eval_mode(twin):
        assign(twin, {"values": FLOAT})
        result = torch.func.functional_call(twin, {"values": rounded}, values)
    result.sum().backward()
    torch.testing.assert_close(parameter.grad, rounded.grad)


def test_attention_takes_its_rounded_projections_on_the_fast_path() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    model, values = Alone(), torch.randn(2, 7, 16)
    prepare(model, hwbmpq.describe(model, values), precision=3, first_last_precision=None)
    model.eval()
    slow = model(values).detach()
    with torch.no_grad():
        torch.testing.assert_close(model(values), slow)
    with as_float(model):
        assert not torch.allclose(model(values), slow, atol=1e-3)


def test_recurrent_weights_are_read_once_a_pass() -> None:
    model, values = prepared("gru")
    seen: list[str] = []
    for name, layer in quantized_layers(model):
        layer.weight_quantizer.register_forward_hook(lambda *_, name=name: seen.append(name))
    model(values)
    assert sorted(seen) == sorted(name for name, _ in quantized_layers(model))


def test_packed_sequences_and_states_go_through() -> None:
    model = Lstm(proj_size=6)
    prepare(model, hwbmpq.describe(model, torch.randn(1, 7, 10)), precision=(4, FLOAT))
    packed = nn.utils.rnn.pack_sequence([torch.randn(5, 10), torch.randn(3, 10)])
    values, (state, _) = model.lstm(packed)
    assert values.data.shape == (8, 12)
    assert state.shape == (2, 2, 6)


def test_classes_are_named_after_the_float_ones() -> None:
    model, _ = prepared("gru")
    assert type(model.gru).__name__ == "QuantizedGRU"
    assert isinstance(model.gru, nn.GRU)
    assert type(model) is Gru
    functional, _ = prepared("functional head")
    assert type(functional) is FunctionalHead
    assert isinstance(functional.embedding, nn.Embedding)


def test_transformers_of_torch_keep_their_attributes() -> None:
    model = Encoder()
    prepare(model, hwbmpq.describe(model, torch.randn(1, 7, 10)))
    attention = model.encoder.layers[0].self_attn
    assert F.linear(torch.eye(16), attention.out_proj.weight).shape == (16, 16)
    assert attention.embed_dim == 16
