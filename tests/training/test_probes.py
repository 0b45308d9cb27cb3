"""Probes of accuracy: each is what a run at its budget would be, whatever was probed before."""

import itertools

import torch
from torch import nn

from hwbmpq.data import load_data
from hwbmpq.tasks import get_task
from hwbmpq.training import resolve_settings
from hwbmpq.training.accuracy import with_validation
from hwbmpq.training.probes import Prober
from hwbmpq.values import Sensitivity

SIZES = {"3": 288, "5": 192, "7": 96}
"""Weights of the layers between the ends; two of them are as large as the third together."""
LOSSES = {"3": 12.0, "5": 11.5, "7": 1.0}
"""At 2 bits instead of 4: the large layer is worth a little less than the two others."""


def make_prober() -> Prober:
    torch.manual_seed(0)
    sizes = (192, 12, 24, 8, 12, 10)
    pairs = itertools.pairwise(sizes)
    layers = [m for i, o in pairs for m in (nn.Linear(i, o), nn.ReLU())]
    settings = resolve_settings(
        {
            "model": "hwbmpq:resnet8",
            "target": "mpic",
            "weights": "given",
            "epochs": 0,
            "bits": (2, 4),
            "max_drop": 0.1,
            "minimise": "weight_memory",
            "calibration_images": 32,
            "inertia": 0.9,
        }
    )
    data = load_data("digits", input_size=(3, 8, 8), train_limit=96, test_limit=32)
    names = ("1", *SIZES, "9")
    errors = {name: {2: LOSSES.get(name, 0.0), 4: 0.0, 8: 0.0} for name in names}
    return Prober(
        nn.Sequential(nn.Flatten(), *layers[:-1]),
        with_validation(data, settings),
        settings,
        get_task("classification"),
        sensitivity=Sensitivity(method="enbg", scores=dict.fromkeys(names, 1.0), errors=errors),
    )


def test_a_probe_does_not_depend_on_those_before_it() -> None:
    prober = make_prober()
    smallest = prober.ends[0]
    room = [smallest + 2 * weights for weights in (SIZES["3"] + SIZES["7"], SIZES["3"])]
    found = [prober.probe(budget).weight_bits[1:-1] for budget in room]
    assert found == [(4, 2, 4), (2, 4, 4)]
    assert found[1] == make_prober().probe(room[1]).weight_bits[1:-1]
