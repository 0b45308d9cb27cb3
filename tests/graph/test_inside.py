"""What operations keep in memory while they run, beside what they read and make."""

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.values import Schedule


def schedule_of(model: nn.Module, *shape: int) -> Schedule:
    return hwbmpq.describe(model, torch.zeros(1, *shape)).schedule


class Attention(nn.Module):
    """Four heads over 12 tokens of 8 channels, after a layer and before one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.attention(x, x, x, need_weights=False)[0])  # type: ignore[no-any-return]


class AttentionUntraceable(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) < 1e9 else x


class FusedAttention(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(1, 12, 3, 4, 2).permute(2, 0, 3, 1, 4).unbind(0)
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.last(x.transpose(1, 2).reshape(1, 12, 8))  # type: ignore[no-any-return]


SCORES = 4 * 12 * 12


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        (
            Attention(),
            3 * 12 * 8 + SCORES + 12 * 8,
        ),  # queries, keys and values, scores, and the heads' results
        (AttentionUntraceable(), 3 * 12 * 8 + SCORES + 12 * 8),
        (FusedAttention(), SCORES),  # what it reads is there anyway
    ],
    ids=["module", "hooks", "function"],
)
def test_what_attention_keeps_inside_is_in_memory_while_it_runs(model: nn.Module, elements: int) -> None:
    schedule = schedule_of(model, 12, 8)
    (inside,) = [tensor for tensor in schedule.tensors if tensor.name.startswith("inside ")]
    assert inside.elements == elements
    assert inside.made_at == inside.last_read_at
    assert not inside.readers
    assert inside.name == f"inside {schedule.steps[inside.made_at]}"


class WithCell(nn.Module):
    def __init__(self, cell: nn.Module, width: int) -> None:
        super().__init__()
        self.cell, self.last = cell, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, 0] if isinstance(self.cell, nn.RNNCellBase) else x
        found = self.cell(x)
        return self.last(found if isinstance(self.cell, (nn.GRUCell, nn.RNNCell)) else found[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("cell", "width", "elements"),
    [
        (nn.GRU(4, 32, batch_first=True), 32, 32 + 3 * 32),
        (nn.GRU(4, 32), 32, 10 * (32 + 3 * 32)),  # the example's ten steps are a batch to it
        (nn.LSTM(4, 32, batch_first=True), 32, 2 * 32 + 4 * 32),
        (nn.RNN(4, 32, batch_first=True), 32, 32 + 32),
        (nn.GRU(4, 32, batch_first=True, bidirectional=True), 64, 2 * 32 + 3 * 32),
        (nn.GRU(4, 32, num_layers=2, batch_first=True), 32, 2 * 32 + 3 * 32 + 10 * 32),
        (nn.LSTMCell(4, 32), 32, 2 * 32 + 4 * 32),
        (nn.GRUCell(4, 32), 32, 32 + 3 * 32),
    ],
    ids=["gru", "batch-second", "lstm", "rnn", "both-ways", "stacked", "lstm-cell", "gru-cell"],
)
def test_the_state_and_the_gates_of_one_step_are_in_memory(
    cell: nn.Module, width: int, elements: int
) -> None:
    schedule = schedule_of(WithCell(cell, width), 10, 4)
    (inside,) = [tensor for tensor in schedule.tensors if tensor.name.startswith("inside ")]
    assert inside.elements == elements


def test_a_layer_hides_nothing(tiny_cnn: nn.Module) -> None:
    assert not [t for t in schedule_of(tiny_cnn, 3, 8, 8).tensors if t.name.startswith("inside ")]


def test_attention_needs_as_much_ram_however_it_is_written() -> None:
    class WrittenOut(FusedAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).reshape(1, 12, 3, 4, 2).permute(2, 0, 3, 1, 4).unbind(0)
            x = (q @ k.transpose(-1, -2)).softmax(-1) @ v
            return self.last(x.transpose(1, 2).reshape(1, 12, 8))  # type: ignore[no-any-return]

    profile = hwbmpq.load_profile("stm32h743")
    module, fused, written = (
        hwbmpq.costs.tabulate(
            hwbmpq.describe(model, torch.zeros(1, 12, 8)), profile, costs="ram", bits=[8]
        ).total("ram", 8)
        for model in (Attention(), FusedAttention(), WrittenOut())
    )
    assert fused == written
    read, made = 12 * 8 * 32, 12 * 8 * 8  # it reads floats, and the last layer reads 8 bits
    assert module == read + 32 * (3 * 12 * 8 + SCORES + 12 * 8) + made
