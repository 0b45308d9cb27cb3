"""A prepared network lives on as users treat networks: saved, copied, compiled, differentiated twice."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.quant import assign, prepare, quantized_layers

# torch.compile looks at the gradients of tensors on its own account.
compiles = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def prepared(model: nn.Module, images: Tensor, **options: object) -> nn.Module:
    return prepare(model, hwbmpq.describe(model, images), **options)  # type: ignore[arg-type]


def precisions(model: nn.Module) -> dict[str, str]:
    return {name: str(layer.precision) for name, layer in quantized_layers(model)}


def test_deepcopy_keeps_quantizers_shared() -> None:
    class SharedInput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.left, self.right = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.stem(x))
            return self.left(x) + self.right(x)

    twin = copy.deepcopy(prepared(SharedInput(), torch.randn(1, 4)))
    assert twin.left.input_quantizer is twin.right.input_quantizer


def test_a_float_checkpoint_loads_strictly(tiny_cnn: nn.Module, images: Tensor) -> None:
    state = copy.deepcopy(tiny_cnn.state_dict())
    prepared(tiny_cnn, images)
    with torch.no_grad():
        tiny_cnn[0].weight.zero_()
    tiny_cnn.load_state_dict(state)
    assert torch.equal(tiny_cnn[0].weight, state["0.weight"])


def test_a_checkpoint_that_misses_weights_is_still_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    state = tiny_cnn.state_dict()
    del state["3.weight"]
    prepared(tiny_cnn, images)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "3.weight"'):
        tiny_cnn.load_state_dict(state)


def test_a_quantized_checkpoint_restores_widths_alphas_and_outputs(
    tiny_cnn: nn.Module, images: Tensor
) -> None:
    fresh = prepared(copy.deepcopy(tiny_cnn), images, precision=4)
    model = prepared(tiny_cnn, images, precision=4)
    for _ in range(10):
        model(images)
    assign(model, {"3": (2, 8)})
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert precisions(fresh) == precisions(model)
    assert torch.equal(fresh.eval()(images), model.eval()(images))


def test_deepcopy_and_whole_model_pickling(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images).eval()
    for _ in range(10):
        expected = model(images)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(twin(images), expected)
        assert twin[3].weight is not model[3].weight
        assert type(twin[3]) is type(model[3])


def test_replication_as_data_parallel_does_it(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images).eval()
    for _ in range(10):
        expected = model(images)
    replica = _replicate(model)
    result = replica(images)
    assert torch.equal(result, expected)
    result.sum().backward()
    assert model[3].weight.grad is not None


def test_replicas_share_how_many_codes_are_below_zero() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 2))
    values = 4 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    prepare(model, hwbmpq.describe(model, values[:1]), precision=4, quantizer="learned")
    _replicate(model.train())(values)
    quantizers = {name: layer.input_quantizer for name, layer in quantized_layers(model)}
    assert quantizers["2"].steps_below > 0


def _replicate(model: nn.Module) -> nn.Module:
    """What torch.nn.parallel.replicate does to each module, without a second device."""
    modules = list(model.modules())
    replicas = {module: module._replicate_for_data_parallel() for module in modules}
    for module, replica in replicas.items():
        for name, child in module._modules.items():
            replica._modules[name] = replicas[child]
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else parameter.view_as(parameter))
        for name, buffer in module._buffers.items():
            replica._buffers[name] = buffer
    return replicas[model]


@compiles
@pytest.mark.parametrize("precision", [2, 4, (4, 8), 16])
def test_compiled_equals_eager_forward_and_backward(
    tiny_cnn: nn.Module, images: Tensor, precision: object
) -> None:
    eager = prepared(tiny_cnn, images, precision=precision)
    for _ in range(10):
        eager(images)
    twin = copy.deepcopy(eager)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=False)
    torch.testing.assert_close(compiled(images), eager(images))
    compiled(images).square().sum().backward()
    eager(images).square().sum().backward()
    for mine, theirs in zip(twin.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@compiles
def test_compiling_before_the_first_batch_still_initialises_alpha(
    tiny_cnn: nn.Module, images: Tensor
) -> None:
    eager = prepared(tiny_cnn, images)
    twin = copy.deepcopy(eager)
    compiled = torch.compile(twin, backend="aot_eager")
    for _ in range(9):
        eager(images)
        compiled(images)
    torch.testing.assert_close(twin[3].input_quantizer.alpha, eager[3].input_quantizer.alpha)
    assert twin[3].input_quantizer.calibration.batches == 8


@compiles
def test_widths_switch_under_a_compiled_model(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    for _ in range(10):
        model(images)
    compiled = torch.compile(model, backend="aot_eager")
    before = compiled(images)
    assign(model, {"3": 2})
    after = compiled(images)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, model(images))


def test_keyword_calls_go_on_working(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images).eval()
    assert torch.equal(model[0](input=images), model[0](images))


def test_a_loaded_checkpoint_decides_whether_alpha_trains(tiny_cnn: nn.Module, images: Tensor) -> None:
    four = prepared(copy.deepcopy(tiny_cnn), images, precision=4)
    sixteen = prepared(tiny_cnn, images, precision=16)
    assert not sixteen[3].input_quantizer.alpha.requires_grad
    sixteen.load_state_dict(four.state_dict())
    assert sixteen[3].input_quantizer.alpha.requires_grad


def test_second_derivatives_exist(tiny_cnn: nn.Module, images: Tensor) -> None:
    """Hutchinson's estimate of the Hessian's trace needs them."""
    model = prepared(tiny_cnn, images)
    weights = [model[3].weight, model[6].weight, model[6].input_quantizer.alpha]
    first = torch.autograd.grad(model(images).exp().sum(), weights, create_graph=True)
    second = torch.autograd.grad(sum((g * torch.ones_like(g)).sum() for g in first), weights)
    assert all(torch.isfinite(g).all() and g.any() for g in second)


def test_gradients_for_second_derivatives_equal_the_plain_ones(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images).eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    model(images)
    plain = torch.autograd.grad(model(images).exp().sum(), parameters)
    graph = torch.autograd.grad(model(images).exp().sum(), parameters, create_graph=True)
    for a, b in zip(plain, graph, strict=True):
        torch.testing.assert_close(a, b.detach())


def test_torchs_transformer_layer_stays_quantized_in_evaluation() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 2)).eval()
    tokens = torch.randn(2, 5, 8)
    prepared(model, tokens, precision=2)
    with torch.no_grad():
        model(tokens)
        fused = model(tokens)
    torch.testing.assert_close(fused, model(tokens).detach())
    assert layer.linear1.input_quantizer.calibration.has_alpha


def test_describing_a_prepared_model_sees_the_float_network_and_changes_nothing(
    tiny_cnn: nn.Module, images: Tensor
) -> None:
    before = hwbmpq.describe(tiny_cnn, images)
    model = prepared(tiny_cnn, images)
    model(images)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    after = hwbmpq.describe(model, images)
    assert after.to_dict() == before.to_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert precisions(model)["3"] == "W4A4"


def test_float64_networks_are_quantized_in_float64(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn.double(), images.double())
    assert model(images.double()).dtype == torch.float64
    assert model[3].input_quantizer.alpha.dtype == torch.float64


def test_training_under_autocast_gives_finite_gradients(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(images).float().square().mean()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", [2, 4, 16])
def test_half_precision_networks_do_not_overflow(dtype: torch.dtype, precision: int) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    prepared(model, torch.randn(1, 64), precision=precision)
    model.to(dtype)
    values = torch.randn(4096, 64, dtype=dtype)
    result = model(values)
    result.float().square().mean().backward()
    assert torch.isfinite(result).all()
    assert result.any()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
