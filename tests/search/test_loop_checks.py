"""Training loops that go wrong without any error of torch's."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.errors import HwbmpqError, HwbmpqWarning
from hwbmpq.export import save_packed
from hwbmpq.quant import InputQuantizer, assign
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.loop_checks import warn

EXAMPLE = torch.zeros(1, 3, 8, 8)


def allocator_for(model: nn.Module, **options: Any) -> BitAllocator:
    options = {"target": "generic", "epochs": 3, "bits": (2, 4), "budgets": {"memory": "85%"}, **options}
    return BitAllocator(model, EXAMPLE, **options)


def batches(count: int = 2) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)


def train_epoch(model: nn.Module, allocator: BitAllocator, optimizer: torch.optim.Optimizer) -> None:
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        allocator.step()
        optimizer.step()
        optimizer.zero_grad()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01)


def test_a_loop_that_is_right_warns_of_nothing(tiny_cnn: nn.Module, tmp_path: Path) -> None:
    allocator = allocator_for(tiny_cnn)
    optimizer = sgd(tiny_cnn)
    for _ in range(3):
        train_epoch(tiny_cnn, allocator, optimizer)
        allocator.epoch_end()
    save_packed(tiny_cnn, tmp_path / "model.safetensors", example_input=EXAMPLE)


def test_step_after_zero_grad_is_an_error_that_names_the_order_of_calls(tiny_cnn: nn.Module) -> None:
    allocator = allocator_for(tiny_cnn)
    optimizer = sgd(tiny_cnn)
    x, y = next(batches())
    F.cross_entropy(tiny_cnn(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(HwbmpqError, match="no layer has a gradient") as caught:
        allocator.step()
    assert "loss.backward(), allocator.step(), optimizer.step(), optimizer.zero_grad()" in caught.value.hint


def test_gradients_that_are_all_zero_warn_once_and_decide_nothing(tiny_cnn: nn.Module) -> None:
    allocator = allocator_for(tiny_cnn)
    optimizer = sgd(tiny_cnn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in batches():
            F.cross_entropy(tiny_cnn(x), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            allocator.step()
    assert [str(warning.message)[:34] for warning in caught] == ["every gradient of this step is zer"]
    assert issubclass(caught[0].category, HwbmpqWarning)
    with pytest.raises(HwbmpqError, match="every sensitivity is zero"):
        allocator.epoch_end()
    assert allocator.allocation is None


def test_an_optimizer_made_before_the_allocator_is_noticed(tiny_cnn: nn.Module) -> None:
    optimizer = sgd(tiny_cnn)
    allocator = allocator_for(tiny_cnn)
    train_epoch(tiny_cnn, allocator, optimizer)
    with pytest.warns(HwbmpqWarning, match=r"does not hold 2 of the 2 .*alpha.*Create the optimizer after"):
        allocator.epoch_end()
    train_epoch(tiny_cnn, allocator, optimizer)
    allocator.epoch_end()  # said once


def test_parameters_may_be_spread_over_several_optimizers(tiny_cnn: nn.Module) -> None:
    allocator = allocator_for(tiny_cnn)
    alphas = {id(m.alpha): m.alpha for m in tiny_cnn.modules() if isinstance(m, InputQuantizer)}
    weights = [p for p in tiny_cnn.parameters() if id(p) not in alphas]
    optimizers = [torch.optim.SGD(weights, 0.01), torch.optim.Adam(alphas.values(), 0.01)]
    for x, y in batches(12):
        F.cross_entropy(tiny_cnn(x), y).backward()
        allocator.step()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    allocator.epoch_end()


def test_a_long_epoch_is_not_waited_for_to_say_so(tiny_cnn: nn.Module) -> None:
    optimizer = sgd(tiny_cnn)
    allocator = allocator_for(tiny_cnn)
    for _ in range(4):  # two steps each
        train_epoch(tiny_cnn, allocator, optimizer)
    with pytest.warns(HwbmpqWarning, match="does not hold"):
        train_epoch(tiny_cnn, allocator, optimizer)


def test_a_file_of_a_network_whose_widths_were_never_decided_warns(
    tiny_cnn: nn.Module, tmp_path: Path
) -> None:
    allocator = allocator_for(tiny_cnn)
    train_epoch(tiny_cnn, allocator, sgd(tiny_cnn))
    with pytest.warns(HwbmpqWarning, match=r"widths of the warm-up.*epoch_end.*0 times.*memory=85%"):
        save_packed(tiny_cnn, tmp_path / "model.safetensors", example_input=EXAMPLE)


def test_the_allocator_may_be_gone_by_then(tiny_cnn: nn.Module, tmp_path: Path) -> None:
    allocator_for(tiny_cnn)
    tiny_cnn(torch.randn(4, 3, 8, 8))
    with pytest.warns(HwbmpqWarning, match="widths of the warm-up"):
        save_packed(tiny_cnn, tmp_path / "model.safetensors", example_input=EXAMPLE)


def test_a_copy_of_the_network_is_undecided_too(tiny_cnn: nn.Module, tmp_path: Path) -> None:
    allocator_for(tiny_cnn)
    tiny_cnn(torch.randn(4, 3, 8, 8))
    with pytest.warns(HwbmpqWarning, match="widths of the warm-up"):
        save_packed(copy.deepcopy(tiny_cnn), tmp_path / "model.safetensors", example_input=EXAMPLE)


def test_widths_set_by_hand_are_decided(tiny_cnn: nn.Module, tmp_path: Path) -> None:
    allocator = allocator_for(tiny_cnn)
    tiny_cnn(torch.randn(4, 3, 8, 8))
    narrowest = {name: min(options) for name, options in allocator.space.choices.items()}
    assign(tiny_cnn, allocator.space.as_trained(narrowest))
    save_packed(tiny_cnn, tmp_path / "model.safetensors", example_input=EXAMPLE)


def test_gradients_that_are_not_finite_name_epoch_and_step(tiny_cnn: nn.Module) -> None:
    allocator = allocator_for(tiny_cnn)
    for number, (x, y) in enumerate(batches(3)):
        loss = F.cross_entropy(tiny_cnn(x), y)
        (loss * torch.nan if number == 1 else loss).backward()
        allocator.step()
        tiny_cnn.zero_grad()
    with pytest.warns(HwbmpqWarning, match=r"epoch 1: .* 1 of 3 steps.*first.* step 2"):
        decision = allocator.epoch_end()
    assert decision is not None
    assert all(score > 0 for score in decision.sensitivities.values())


def test_an_interval_without_a_finite_gradient_decides_nothing(tiny_cnn: nn.Module) -> None:
    allocator = allocator_for(tiny_cnn)
    for x, y in batches(3):
        (F.cross_entropy(tiny_cnn(x), y) * torch.inf).backward()
        allocator.step()
        tiny_cnn.zero_grad()
    with pytest.raises(HwbmpqError, match=r"epoch 1: .* 3 of 3 steps.*first.* step 1"):
        allocator.epoch_end()
    assert allocator.allocation is None


def test_what_was_not_finite_survives_a_checkpoint(tiny_cnn: nn.Module) -> None:
    other = allocator_for(copy.deepcopy(tiny_cnn))
    allocator = allocator_for(tiny_cnn)
    x, y = next(batches())
    (F.cross_entropy(tiny_cnn(x), y) * torch.nan).backward()
    allocator.step()
    state = allocator.state_dict()
    other.load_state_dict(state)
    with pytest.raises(HwbmpqError, match="1 of 1 steps"):
        other.epoch_end()


def test_more_epochs_than_declared_warn_once(tiny_cnn: nn.Module) -> None:
    allocator = allocator_for(tiny_cnn)
    optimizer = sgd(tiny_cnn)
    for _ in range(3):
        train_epoch(tiny_cnn, allocator, optimizer)
        allocator.epoch_end()
    train_epoch(tiny_cnn, allocator, optimizer)
    with pytest.warns(HwbmpqWarning, match="epoch 4 of 3"):
        allocator.epoch_end()
    allocator.epoch_end()


def test_a_warning_points_at_the_users_own_line() -> None:
    with pytest.warns(HwbmpqWarning, match="a message") as caught:
        warn("a message")
    assert caught[0].filename == __file__
