"""``BitAllocator`` and plans of networks with several inputs, named ones and several outputs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.data import from_loaders
from hwbmpq.errors import HwbmpqError
from hwbmpq.search.config import allocation_config
from hwbmpq.sensitivity import measure_sensitivity


class Pair(nn.Module):
    """Token numbers and a mask, and positions by name."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 8), nn.Linear(3, 8)
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head, self.other = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, ids: Tensor, mask: Tensor, *, positions: Tensor) -> dict[str, Tensor]:
        x = (self.tokens(ids) * mask[..., None]).sum(1) + self.places(positions)
        x = F.relu(self.third(F.relu(self.second(F.relu(self.first(x))))))
        return {"scores": self.head(x), "value": self.other(x)}


def inputs(count: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (count, 5), generator=generator)
    return ids, torch.ones(count, 5), torch.randn(count, 3, generator=generator)


IDS, MASK, POSITIONS = inputs()
SETTINGS: dict[str, Any] = {"target": "generic", "epochs": 3, "warmup_epochs": 1, "interval_epochs": 1}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((IDS, MASK), {"positions": POSITIONS}),
        ({"mask": MASK, "positions": POSITIONS, "ids": IDS}, None),
        ([IDS, MASK], {"positions": POSITIONS}),
    ],
    ids=["tuple", "dict", "list"],
)
def test_a_loop_of_ones_own_trains_a_network_of_several_inputs(args: Any, kwargs: Any) -> None:
    torch.manual_seed(0)
    model = Pair()
    allocator = hwbmpq.BitAllocator(model, args, kwargs, **SETTINGS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        found = model(IDS, MASK, positions=POSITIONS)
        loss = F.cross_entropy(found["scores"], torch.arange(4)) + found["value"].square().mean()
        loss.backward()
        allocator.step()
        optimizer.step()
        optimizer.zero_grad()
        allocator.epoch_end()
    assert allocator.allocation is not None
    assert set(allocator.sensitivities) >= {"places", "first", "second", "third", "head", "other"}
    assert all(score > 0 for score in allocator.sensitivities.values())


def test_a_config_is_still_the_third_argument() -> None:
    config = allocation_config(**SETTINGS)
    assert hwbmpq.BitAllocator(nn.Linear(3, 2), torch.zeros(1, 3), config).config is config
    kwargs = {"positions": POSITIONS}
    assert hwbmpq.BitAllocator(Pair(), (IDS, MASK), kwargs, config).config is config


def test_the_old_name_of_the_example_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="example_args="):
        hwbmpq.BitAllocator(nn.Linear(3, 2), example_input=torch.zeros(1, 3), **SETTINGS)


@pytest.mark.parametrize("method", ["enbg", "divergence", "hessian_trace", "activation_density"])
def test_sensitivities_take_several_inputs_and_any_loss(method: str) -> None:
    torch.manual_seed(0)
    model = Pair()
    graph = hwbmpq.describe(model, (IDS, MASK), {"positions": POSITIONS})
    batches = [({"ids": IDS, "mask": MASK, "positions": POSITIONS}, {"value": torch.ones(4, 1)})] * 2
    found = measure_sensitivity(
        model,
        graph,
        batches,
        method=method,
        precisions={layer.name: hwbmpq.Precision(weight_bits=8, activation_bits=8) for layer in graph},
        widths={layer.name: (2, 8) for layer in graph},
        loss=lambda outputs, targets: F.mse_loss(outputs["value"], targets["value"]),
    )
    assert set(found.scores) == {layer.name for layer in graph}
    assert found.scores["second"] != 0
    if method in ("enbg", "hessian_trace"):
        assert found.scores["head"] == 0  # the loss does not depend on it


def test_the_default_loss_still_needs_labels() -> None:
    model = Pair()
    graph = hwbmpq.describe(model, (IDS, MASK), {"positions": POSITIONS})
    with pytest.raises(HwbmpqError, match="not a pair of tensors"):
        measure_sensitivity(
            model,
            graph,
            [({"ids": IDS, "mask": MASK, "positions": POSITIONS}, {"value": torch.ones(4, 1)})],
            precisions={layer.name: hwbmpq.Precision(weight_bits=8, activation_bits=8) for layer in graph},
            widths={layer.name: (2, 8) for layer in graph},
        )


def test_a_plan_is_made_by_a_loss_of_ones_own() -> None:
    model = Pair()
    graph = hwbmpq.describe(model, (IDS, MASK), {"positions": POSITIONS})
    batch = ({"ids": IDS, "mask": MASK, "positions": POSITIONS}, torch.ones(4, 1))
    images = from_loaders([batch] * 3, [batch]).train
    space = hwbmpq.pipeline.build_search_space(graph, hwbmpq.load_profile("generic"), {})
    found = hwbmpq.pipeline.measure(
        model,
        graph,
        [space.choices],
        images,
        loss=lambda outputs, targets: F.mse_loss(outputs["value"], targets),
    )
    assert found.scores["second"] > 0
    assert hwbmpq.pipeline.plan(space, found).allocation.bits.keys() == found.scores.keys()


def test_a_packed_file_of_several_inputs_gives_the_same_outputs(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Pair().eval()
    graph = hwbmpq.describe(model, (IDS, MASK), {"positions": POSITIONS})
    hwbmpq.quant.prepare(model, graph)
    hwbmpq.quant.assign(model, {layer.name: 4 for layer in graph})
    example = {"ids": IDS, "mask": MASK, "positions": POSITIONS}
    with torch.no_grad():
        model.train()(**example)
        expected = model.eval()(**example)
    hwbmpq.export.save_packed(model, tmp_path / "m.safetensors", example_input=example)
    loaded = hwbmpq.load(tmp_path / "m.safetensors", model=Pair())
    with torch.no_grad():
        found = loaded.eval()(**example)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    network = hwbmpq.export.OnnxNetwork(hwbmpq.export.onnx_graph(model, example).content)
    assert network.input_names == ("ids", "mask", "positions")
    agreement = hwbmpq.export.compare(model, network, [example])
    assert (agreement.inputs, agreement.top1_agreement) == (4, 1.0)
    assert agreement.largest_difference < 1e-5
