"""Three ways to follow a network, one result."""

import time

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.graph import describe_trace
from hwbmpq.graph.hooks import trace_with_hooks
from hwbmpq.graph.operations import Operation, Trace
from hwbmpq.graph.trace import trace_with_export, trace_with_fx


class ShapeBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] < 3:
            raise ValueError("too small")
        return self.head(F.relu(self.conv(x)).mean((2, 3)))


class ValueBranch(ShapeBranch):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = F.relu(x) if x.mean() > 0 else F.relu(x + 1)
        return self.head(x.mean((2, 3)))


class OptionalMask(ShapeBranch):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = F.relu(self.conv(x))
        if mask is not None:
            x = x * mask
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize(
    ("model", "traced_by"),
    [(OptionalMask(), "fx"), (ShapeBranch(), "export"), (ValueBranch(), "hooks")],
    ids=["fx", "export", "hooks"],
)
def test_the_first_tracer_that_works_is_used_and_named(model: nn.Module, traced_by: str) -> None:
    graph = hwbmpq.describe(model, torch.randn(1, 3, 6, 6))
    assert graph.traced_by == traced_by
    assert [(layer.name, layer.macs) for layer in graph] == [("conv", 16 * 4 * 27), ("head", 8)]
    assert not graph["head"].input_signed
    tried = {"fx": [], "export": ["fx"], "hooks": ["fx", "export"]}[traced_by]
    assert [note.partition(":")[0] for note in graph.notes] == tried


class Everything(nn.Module):
    """Convolutions in blocks, an in-place addition, a shared module, functional and module activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.left = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.twice = nn.Conv2d(4, 4, 1, bias=False)
        self.down = nn.Conv2d(4, 4, 1)
        self.act = nn.ReLU6()
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        y = self.twice(self.act(self.left(x)))
        y += self.down(x)
        y = self.twice(torch.sigmoid(y))
        y = F.adaptive_avg_pool2d(torch.clamp(y, min=0.0), 1).flatten(1)
        return self.head(self.dropout(y))


def facts(model: nn.Module, operations: list[Operation]) -> dict[str, object]:
    graph = describe_trace(model, Trace(operations=tuple(operations), traced_by="x"))
    return {
        "layers": [
            (la.name, la.kind, la.macs, la.calls, la.input_signed, la.is_end, la.input_shape, la.output_shape)
            for la in graph
        ],
        "ties": [group.layers for group in graph.ties],
        "uncovered": sorted((e.name, e.reason, e.parameters, e.macs) for e in graph.uncovered),
        "shared inputs": [[a.name for a in graph if set(a.reads) & set(b.reads)] for b in graph],
    }


def test_all_three_tracers_tell_the_same_story() -> None:
    model = Everything().eval()
    example = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        stories = [
            facts(model, trace(model, example))
            for trace in (trace_with_fx, trace_with_export, trace_with_hooks)
        ]
    assert stories[0] == stories[1]
    assert stories[0] == stories[2]
    signed = {name: is_signed for name, _, _, _, is_signed, *_ in stories[0]["layers"]}  # type: ignore[misc]
    assert signed == {"stem": True, "left": False, "twice": False, "down": False, "head": False}
    assert stories[0]["ties"] == [("left", "down")]


def test_failed_exports_do_not_write_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    hwbmpq.describe(ValueBranch(), torch.randn(1, 3, 6, 6))
    assert [r.name for r in caplog.records if r.levelname == "WARNING"] == []


def test_time_grows_linearly_to_a_thousand_layers() -> None:
    def seconds(blocks: int) -> float:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), *(_Residual() for _ in range(blocks)), nn.Linear(4, 2))
        start = time.perf_counter()
        graph = hwbmpq.describe(model, torch.empty(1, 4))
        elapsed = time.perf_counter() - start
        assert len(graph) == 2 * blocks + 2
        assert all(len(layer.fed_by) == 1 and len(layer.feeds) <= 2 for layer in graph)
        return elapsed

    seconds(50)  # warm up
    ratio = seconds(800) / seconds(200)
    assert ratio < 8, f"4 times the layers took {ratio:.1f} times as long"


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))
