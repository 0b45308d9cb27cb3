"""Tie groups, with the expected ones written down."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.data.torchvision_import import import_timm
from hwbmpq.errors import UnknownNameError

RESNET18 = {
    "input": [
        ("layer1.1.conv2", "layer2.0.downsample.0"),
        ("layer2.1.conv2", "layer3.0.downsample.0"),
        ("layer3.1.conv2", "layer4.0.downsample.0"),
    ],
    "sibling": [
        ("layer2.0.conv1", "layer2.0.downsample.0"),
        ("layer3.0.conv1", "layer3.0.downsample.0"),
        ("layer4.0.conv1", "layer4.0.downsample.0"),
    ],
    "none": [],
}
BOTTLENECKS = {
    "input": [
        ("layer1.0.conv1", "layer1.0.downsample.0"),  # its input layer is the stem, a fixed end
        ("layer1.2.conv3", "layer2.0.downsample.0"),
        ("layer2.3.conv3", "layer3.0.downsample.0"),
        ("layer3.5.conv3", "layer4.0.downsample.0"),
    ],
    "sibling": [(f"layer{stage}.0.conv1", f"layer{stage}.0.downsample.0") for stage in (1, 2, 3, 4)],
    "none": [],
}
EXPECTED = {
    "resnet18": RESNET18,
    "resnet50": BOTTLENECKS,
    "resnext50_32x4d": BOTTLENECKS,
    "regnety_008": {  # squeeze-and-excitation inside the block
        "input": [
            ("s1.b1.conv1.conv", "s1.b1.downsample.conv"),
            ("s1.b1.conv3.conv", "s2.b1.downsample.conv"),
            ("s2.b3.conv3.conv", "s3.b1.downsample.conv"),
            ("s3.b8.conv3.conv", "s4.b1.downsample.conv"),
        ],
        "sibling": [(f"s{stage}.b1.conv1.conv", f"s{stage}.b1.downsample.conv") for stage in (1, 2, 3, 4)],
        "none": [],
    },
    "resnetv2_50": {  # pre-activation: the shortcut leaves after norm and ReLU, and runs first
        "input": [
            ("stages.0.blocks.0.downsample.conv", "stages.0.blocks.0.conv1"),
            ("stages.0.blocks.2.conv3", "stages.1.blocks.0.downsample.conv"),
            ("stages.1.blocks.3.conv3", "stages.2.blocks.0.downsample.conv"),
            ("stages.2.blocks.5.conv3", "stages.3.blocks.0.downsample.conv"),
        ],
        "sibling": [
            (f"stages.{stage}.blocks.0.downsample.conv", f"stages.{stage}.blocks.0.conv1")
            for stage in (0, 1, 2, 3)
        ],
        "none": [],
    },
    "mobileone_s0": {"input": [], "sibling": [], "none": []},  # parallel branches of one layer each
    "dla34": {  # level5's pooled input is read by the root as well
        "input": [
            ("level1.0", "level2.project.0"),
            ("level2.root.conv", "level3.tree1.project.0"),
            ("level3.tree2.root.conv", "level4.tree1.project.0"),
            ("level4.tree2.root.conv", "level5.project.0"),
        ],
        "sibling": [
            ("level2.project.0", "level2.tree1.conv1"),
            ("level3.tree1.project.0", "level3.tree1.tree1.conv1"),
            ("level4.tree1.project.0", "level4.tree1.tree1.conv1"),
            ("level5.project.0", "level5.tree1.conv1"),
        ],
        "none": [],
    },
    "densenet121": {"input": [], "sibling": [], "none": []},
    "mobilenetv2_100": {"input": [], "sibling": [], "none": []},
}


@pytest.mark.parametrize("policy", ["input", "sibling", "none"])
@pytest.mark.parametrize("name", EXPECTED)
def test_tie_groups_of_known_networks(name: str, policy: str) -> None:
    with torch.device("meta"):
        model = import_timm().create_model(name)
    graph = hwbmpq.describe(model, torch.empty(1, 3, 224, 224), tie=policy)
    assert [group.layers for group in graph.ties] == EXPECTED[name][policy]


def test_a_downsample_behind_the_stem_says_why_it_follows_its_sibling() -> None:
    with torch.device("meta"):
        model = import_timm().create_model("resnet50")
    reasons = [group.reason for group in hwbmpq.describe(model, torch.empty(1, 3, 224, 224)).ties]
    assert reasons[0] == (
        "downsample layer1.0.downsample.0 follows its sibling layer1.0.conv1, "
        "since its input layer conv1 is a fixed end"
    )
    assert reasons[1] == "downsample layer2.0.downsample.0 follows its input layer layer1.2.conv3"


def test_names_do_not_matter() -> None:
    """A 1x1 convolution called downsample that is none, and a real one with a misleading name."""

    class Misnamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 1)
            self.downsample = nn.Conv2d(4, 4, 1)
            self.a, self.b, self.main = (nn.Conv2d(4, 4, 1) for _ in range(3))
            self.head = nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.downsample(F.relu(self.stem(x))))
            return self.head(F.relu(self.b(F.relu(self.a(x))) + self.main(x)))

    graph = hwbmpq.describe(Misnamed(), torch.randn(1, 3, 4, 4))
    assert [group.layers for group in graph.ties] == [("downsample", "main")]


class Parallel(nn.Module):
    """Two branches with one layer each, then branches that are not apart: neither is a downsample."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c, self.d, self.e = (nn.Linear(4, 4) for _ in range(6))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.a(x) + self.b(x))
        side = self.c(x)  # also read by the other branch
        return self.head(F.relu(self.e(F.relu(self.d(x + side))) + side))


def test_branches_of_equal_length_and_tangled_branches_are_not_tied() -> None:
    assert hwbmpq.describe(Parallel(), torch.randn(1, 4)).ties == ()


class TwoWays(nn.Module):
    """A block whose shortcut has two layers and whose main branch has four, then a downsample."""

    def __init__(self, *, main_first: bool) -> None:
        super().__init__()
        self.main_first = main_first
        self.stem, self.a, self.b, self.c, self.d, self.s, self.t = (nn.Linear(4, 4) for _ in range(7))
        self.e, self.f, self.short, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        main = self.d(F.relu(self.c(F.relu(self.b(F.relu(self.a(x)))))))
        side = self.t(F.relu(self.s(x)))
        x = F.relu(main + side if self.main_first else side + main)
        return self.head(F.relu(self.f(F.relu(self.e(x))) + self.short(x)))


@pytest.mark.parametrize("main_first", [True, False])
def test_the_main_path_is_the_branch_with_more_layers_whatever_the_order(main_first: bool) -> None:
    graph = hwbmpq.describe(TwoWays(main_first=main_first), torch.randn(1, 4))
    assert [group.layers for group in graph.ties] == [("d", "short")]


def test_a_downsample_between_fixed_ends_is_not_tied() -> None:
    class Shallow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.short, self.head = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.second(F.relu(self.first(x))) + self.short(x)))

    graph = hwbmpq.describe(Shallow(), torch.randn(1, 4))
    assert [layer.name for layer in graph if layer.is_end] == ["first", "short", "head"]
    assert graph.ties == ()


def test_a_downsample_whose_sibling_is_an_end_is_not_tied_to_it() -> None:
    """The block stands right behind the stem, and its first layer shares the stem's weight."""
    model = TwoWays(main_first=True)
    model.e.weight = model.d.weight = model.stem.weight
    ties = [group.layers for group in hwbmpq.describe(model, torch.randn(1, 4)).ties]
    assert ties == [("stem", "d", "e")]


def test_a_block_that_ends_the_network_is_not_tied() -> None:
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.pre, self.a, self.b, self.short = (nn.Linear(4, 4) for _ in range(5))

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.pre(F.relu(self.stem(x))))
            return self.b(F.relu(self.a(x))) + self.short(x)

    assert hwbmpq.describe(Headless(), torch.randn(1, 4)).ties == ()


def test_the_feeder_is_the_gated_path_not_the_gate() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.main = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
            self.gate, self.a, self.b, self.short = (nn.Conv2d(4, 4, 1) for _ in range(4))
            self.head = nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.main(F.relu(self.stem(x)))
            x = F.relu(torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True))) * x)
            return self.head(F.relu(self.b(F.relu(self.a(x))) + self.short(x)))

    ties = [group.layers for group in hwbmpq.describe(Gated(), torch.randn(1, 3, 4, 4)).ties]
    assert ties == [("main", "short")]


def test_chained_ties_become_one_group() -> None:
    """One block per stage: each downsample's input layer is alone, but shared weights chain groups."""

    class Chained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.pre, self.a, self.b, self.short = (nn.Linear(4, 4) for _ in range(5))
            self.twin = nn.Linear(4, 4)
            self.twin.weight = self.short.weight
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.pre(F.relu(self.stem(x))))
            x = F.relu(self.b(F.relu(self.a(x))) + self.short(x))
            return self.head(self.twin(x))

    graph = hwbmpq.describe(Chained(), torch.randn(1, 4))
    assert [group.layers for group in graph.ties] == [("pre", "short", "twin")]
    assert graph.ties[0].reason == (
        "downsample short follows its input layer pre; twin shares its weight with short"
    )


def test_an_unknown_policy_is_refused_with_the_known_ones(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(UnknownNameError, match="no tie policy named 'inputs': did you mean input"):
        hwbmpq.describe(tiny_cnn, images, tie="inputs")
