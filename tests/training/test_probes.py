"""Probes of accuracy: each is what a run at its budget would be, whatever was probed before."""

import torch
from torch import nn

from hwbmpq.data import load_data
from hwbmpq.tasks import get_task
from hwbmpq.training import resolve_settings
from hwbmpq.training.accuracy import with_validation
from hwbmpq.training.probes import Prober


def make_prober(inertia: float) -> Prober:
    torch.manual_seed(0)
    sizes = (192, 100, 150, 60, 120, 90)
    pairs = zip(sizes, sizes[1:], strict=False)
    network = nn.Sequential(
        nn.Flatten(), *(m for i, o in pairs for m in (nn.Linear(i, o), nn.ReLU())), nn.Linear(90, 10)
    )
    settings = resolve_settings(
        {
            "model": "hwbmpq:resnet8",
            "target": "mpic",
            "weights": "given",
            "epochs": 0,
            "bits": (2, 4, 8),
            "max_drop": 0.1,
            "calibration_images": 32,
            "inertia": inertia,
        }
    )
    data = load_data("digits", input_size=(3, 8, 8), train_limit=96, test_limit=32)
    return Prober(network, with_validation(data, settings), settings, get_task("classification"))


def test_a_probe_does_not_depend_on_those_before_it() -> None:
    prober = make_prober(inertia=0.9)
    low, high = prober.ends
    budgets = [low + (high - low) * share for share in (1.0, 0.5, 0.35, 0.6, 0.45, 0.3)]
    one_after_another = [prober.probe(budget).weight_bits for budget in budgets]
    assert one_after_another == [make_prober(inertia=0.9).probe(budget).weight_bits for budget in budgets]
    assert len(set(one_after_another)) > 3
