"""Bit gradients gathered in a training loop: what is read, when, and what it must not cost."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.graph import describe
from hwbmpq.quant import prepare, quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.sensitivity import bit_gradient_norm
from hwbmpq.sensitivity.enbg import BitGradientCollector, mean_over_epochs

WIDEST = 4
Batch = tuple[Tensor, Tensor]


def prepared(model: nn.Module, example: Tensor) -> nn.Module:
    return prepare(model, describe(model, example), precision=(4, 8))


def collector_of(model: nn.Module, widest: int = WIDEST) -> BitGradientCollector:
    return BitGradientCollector(
        model, {name: widest for name, _ in quantized_layers(model)}, with_squares=True
    )


def layers_of(model: nn.Module) -> dict[str, QuantizedLayer]:
    return dict(quantized_layers(model))


def batches(count: int, size: int = 6) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, 3, 8, 8, generator=generator), torch.randint(0, 5, (size,), generator=generator))
        for _ in range(count)
    ]


def norms_now(model: nn.Module, widest: int = WIDEST) -> dict[str, float]:
    """Plainly, weight by weight: |g|·S·(2^q - 1), in double precision."""
    found = {}
    for name, layer in quantized_layers(model):
        weight, gradient = layer.weight.detach().double(), layer.weight.grad.double()
        step = float(weight.abs().max()) / (2 ** (widest - 1) - 1)
        found[name] = float((gradient.abs() * step * (2**widest - 1)).mean())
    return found


def mean_of(steps: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}


def squares_now(model: nn.Module) -> dict[str, float]:
    return {
        name: float(layer.weight.grad.double().square().mean()) for name, layer in quantized_layers(model)
    }


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), torch.optim.Adam], ids=["sgd", "adam"]
)
def test_an_epoch_is_the_mean_over_its_steps(
    make: Callable[[Any], torch.optim.Optimizer], tiny_cnn: nn.Module, images: Tensor
) -> None:
    model = prepared(tiny_cnn, images)
    collector, optimizer = collector_of(model), make(model.parameters())
    norms, squares = [], []
    for x, y in batches(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms.append(norms_now(model))
        squares.append(squares_now(model))
        collector.add_step()
        optimizer.step()
        assert collector.running() == pytest.approx(mean_of(norms), rel=1e-5)
    found, found_squares = collector.close_epoch()
    assert found == pytest.approx(mean_of(norms), rel=1e-5)
    assert found_squares == pytest.approx(mean_of(squares), rel=1e-5)


def test_a_closed_epoch_leaves_nothing_to_the_next(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    collector = collector_of(model)
    (x1, y1), (x2, y2) = batches(2)
    F.cross_entropy(model(x1), y1).backward()
    collector.add_step()
    collector.close_epoch()
    assert collector.running() == {}
    model.zero_grad()
    F.cross_entropy(model(x2), y2).backward()
    collector.add_step()
    assert collector.close_epoch()[0] == pytest.approx(norms_now(model), rel=1e-5)


def test_an_epoch_without_steps_is_empty(tiny_cnn: nn.Module, images: Tensor) -> None:
    assert collector_of(prepared(tiny_cnn, images)).close_epoch() == ({}, {})


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_the_step_size_is_that_of_the_widest_candidate(
    bits: int, tiny_cnn: nn.Module, images: Tensor
) -> None:
    """Whatever width the layer has now: here 4, or 16 at the ends."""
    model = prepared(tiny_cnn, images)
    collector = collector_of(model, bits)
    ((x, y),) = batches(1)
    F.cross_entropy(model(x), y).backward()
    collector.add_step()
    expected = {
        name: float(bit_gradient_norm(layer.weight.grad, layer.weight.detach(), bits))
        for name, layer in quantized_layers(model)
    }
    assert collector.close_epoch()[0] == pytest.approx(expected, rel=1e-6)
    if bits > 2:
        assert expected == pytest.approx(norms_now(model, bits), rel=1e-5)


def test_accumulated_gradients_are_one_read_of_their_sum(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    collector = collector_of(model)
    for x, y in batches(3):
        (F.cross_entropy(model(x), y) / 3).backward()
    collector.add_step()
    assert collector.close_epoch()[0] == pytest.approx(norms_now(model), rel=1e-5)


def test_clipping_afterwards_changes_nothing(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    collector = collector_of(model)
    ((x, y),) = batches(1)
    F.cross_entropy(model(x), y).backward()
    before = norms_now(model)
    collector.add_step()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert norms_now(model)["3"] < before["3"] / 2
    assert collector.close_epoch()[0] == pytest.approx(before, rel=1e-5)


class FakeScaler:
    """As torch's, on any device."""

    def __init__(self, factor: float, *, enabled: bool = True) -> None:
        self.factor, self.enabled = factor, enabled

    def is_enabled(self) -> bool:
        return self.enabled

    def scale(self, outputs: Tensor) -> Tensor:
        return outputs * self.factor if self.enabled else outputs


@pytest.mark.parametrize(
    "scaler",
    [
        FakeScaler(1024.0),
        FakeScaler(3.0),
        FakeScaler(1024.0, enabled=False),
        torch.amp.GradScaler("cpu", init_scale=512.0),
        torch.amp.GradScaler("cpu", enabled=False),
    ],
    ids=["fake", "no power of two", "fake, off", "torch", "torch, off"],
)
def test_a_scaler_makes_no_difference(scaler: Any, tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    collector = collector_of(model)
    ((x, y),) = batches(1)
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    norms, squares = norms_now(model), squares_now(model)
    model.zero_grad()
    scaler.scale(loss).backward()
    collector.add_step(scaler)
    found = collector.close_epoch()
    assert found[0] == pytest.approx(norms, rel=1e-4)
    assert found[1] == pytest.approx(squares, rel=1e-4)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("layer", [0, 3, 8])
def test_a_step_with_a_gradient_that_is_no_number_does_not_count(
    bad: float, layer: int, tiny_cnn: nn.Module, images: Tensor
) -> None:
    model = prepared(tiny_cnn, images)
    collector = collector_of(model)
    good = []
    for number, (x, y) in enumerate(batches(3)):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if number == 1:
            model[layer].weight.grad.view(-1)[0] = bad
        else:
            good.append(norms_now(model))
        collector.add_step()
    assert collector.close_epoch()[0] == pytest.approx(mean_of(good), rel=1e-5)


def test_an_epoch_of_bad_steps_only_is_empty(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    collector = collector_of(model)
    ((x, y),) = batches(1)
    F.cross_entropy(model(x), y).backward()
    model[3].weight.grad.fill_(float("nan"))
    collector.add_step()
    assert collector.running() == {}
    assert collector.close_epoch() == ({}, {})


def test_a_frozen_layer_scores_zero_and_the_others_as_ever(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    model[3].weight.requires_grad_(False)
    collector = collector_of(model)
    ((x, y),) = batches(1)
    F.cross_entropy(model(x), y).backward()
    collector.add_step()
    found = collector.close_epoch()[0]
    assert found.pop("3") == 0.0
    model[3].weight.grad = torch.zeros_like(model[3].weight)
    expected = norms_now(model)
    del expected["3"]
    assert found == pytest.approx(expected, rel=1e-5)


class Tied(nn.Module):
    """Two layers that hold one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(self.stem(x).relu()).relu()).relu())


def test_layers_with_one_parameter_share_its_gradient() -> None:
    model = prepared(Tied(), torch.randn(1, 4))
    collector = collector_of(model)
    F.cross_entropy(model(torch.randn(6, 4)), torch.tensor([0, 1, 2, 3, 0, 1])).backward()
    collector.add_step()
    found = collector.close_epoch()[0]
    assert found["one"] == found["two"] == pytest.approx(norms_now(model)["one"] / 2, rel=1e-5)


class StandardisedConv(nn.Conv2d):
    """As timm's StdConv2d: the weight that is multiplied with is computed in forward."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.standardised(), self.bias, self.stride, self.padding)

    def standardised(self) -> Tensor:
        return (self.weight - self.weight.mean()) / self.weight.std() * 10


def standardised_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.ReLU(),
        StandardisedConv(4, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


def gradient_of_computed(model: nn.Module, micro_batches: list[Batch]) -> tuple[Tensor, Tensor]:
    """The weight that enters the quantizer of layer 2, and its gradient summed over the batches, by autograd."""
    entering = model[2].standardised().detach()
    total = torch.zeros_like(entering)
    for x, y in micro_batches:
        twin = copy.deepcopy(model)
        leaf = entering.clone().requires_grad_()
        twin[2].standardised = lambda leaf=leaf: leaf
        F.cross_entropy(twin(x), y).backward()
        total += leaf.grad
    return entering, total


def test_a_computed_weight_is_read_where_it_enters_the_quantizer() -> None:
    model = prepared(standardised_network(), torch.randn(1, 3, 8, 8))
    with torch.no_grad():
        model[2].weight += 1  # which standardising takes away again
    (x0, _), *micro_batches = batches(3)
    for _ in range(8):
        model(x0)  # α comes to rest
    collector = collector_of(model)
    for _ in range(2):  # the second step must not see the first one's gradients
        model.zero_grad()
        weight, gradient = gradient_of_computed(model, micro_batches)
        for x, y in micro_batches:
            F.cross_entropy(model(x), y).backward()
        collector.add_step()
        expected = float(bit_gradient_norm(gradient, weight, WIDEST))
        assert collector.close_epoch()[0]["2"] == pytest.approx(expected, rel=1e-4)
    by_parameter = float(bit_gradient_norm(model[2].weight.grad, model[2].weight.detach(), WIDEST))
    assert expected != pytest.approx(by_parameter, rel=0.1)


def test_evaluation_between_steps_leaves_a_computed_weight_alone() -> None:
    model = prepared(standardised_network(), torch.randn(1, 3, 8, 8))
    (x0, y0), (x1, _) = batches(2)
    for _ in range(8):
        model(x0)
    collector = collector_of(model)
    weight, gradient = gradient_of_computed(model, [(x0, y0)])
    F.cross_entropy(model(x0), y0).backward()
    with torch.no_grad():
        model.eval()(x1)
    collector.add_step()
    expected = float(bit_gradient_norm(gradient, weight, WIDEST))
    assert collector.close_epoch()[0]["2"] == pytest.approx(expected, rel=1e-4)


def test_a_frozen_computed_weight_scores_zero() -> None:
    model = prepared(standardised_network(), torch.randn(1, 3, 8, 8))
    model[2].weight.requires_grad_(False)
    collector = collector_of(model)
    ((x, y),) = batches(1)
    F.cross_entropy(model(x), y).backward()
    collector.add_step()
    assert collector.close_epoch()[0]["2"] == 0.0


@contextmanager
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, whatever would bring a value from an accelerator to Python raises."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("waits for the device")

    with monkeypatch.context() as patch:
        for name in "item tolist numpy cpu __float__ __int__ __bool__ __index__ nonzero".split():
            patch.setattr(Tensor, name, refuse)
        yield


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("scaler", [None, FakeScaler(8.0)], ids=["plain", "scaled"])
def test_a_step_waits_for_nothing(
    bits: int, scaler: FakeScaler | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prepared(standardised_network(), torch.randn(1, 3, 8, 8))
    collector = collector_of(model, bits)
    for x, y in batches(2):
        F.cross_entropy(model(x), y).backward()
        with no_waiting(monkeypatch):
            collector.add_step(scaler)
    assert len(collector.close_epoch()[0]) == 3


def test_a_step_leaves_weights_gradients_and_graph_alone(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    collector = collector_of(model)
    ((x, y),) = batches(1)
    F.cross_entropy(model(x), y).backward()
    before = [(p.detach().clone(), None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    collector.add_step()
    for parameter, (value, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert gradient is None if parameter.grad is None else torch.equal(parameter.grad, gradient)
        assert parameter.grad is None or not parameter.grad.requires_grad


def steps(model: nn.Module, collector: BitGradientCollector, given: list[Batch]) -> None:
    for x, y in given:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        collector.add_step()


def test_a_state_saved_within_an_epoch_continues_it(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    given = batches(4)
    for x, _ in given * 2:
        model(x)  # α comes to rest
    model.eval()
    whole, first, second = (collector_of(model) for _ in range(3))
    steps(model, whole, given)
    steps(model, first, given[:2])
    second.load_state_dict(first.state_dict())
    steps(model, second, given[2:])
    assert second.close_epoch() == whole.close_epoch()


def test_a_loaded_state_is_a_copy(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn, images)
    first, second = collector_of(model), collector_of(model)
    (early, late) = batches(2)
    steps(model, first, [early])
    before = first.running()
    second.load_state_dict(first.state_dict())
    steps(model, second, [late])
    assert first.running() == before


def test_the_mean_over_epochs_weighs_epochs_not_steps() -> None:
    assert mean_over_epochs([{"a": 1.0, "b": 2.0}, {}, {"a": 4.0, "b": 0.0}]) == {"a": 2.5, "b": 1.0}
    assert mean_over_epochs([{}, {}]) == {}


def test_gradients_that_were_thrown_away_do_not_count_for_computed_weights() -> None:
    images, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    found = []
    for thrown_away in (0, 2):
        torch.manual_seed(0)
        model = prepared(standardised_network(), images[:1])
        collector = collector_of(model)
        for _ in range(thrown_away):
            F.cross_entropy(model(images), labels).backward()
            model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        collector.add_step()
        found.append(collector.close_epoch()[0]["2"])
    # The clipping points have seen more batches the second time: equal but for that.
    assert found[1] == pytest.approx(found[0], rel=0.2)
