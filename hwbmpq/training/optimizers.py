"""Optimizers for quantized networks, and how large their steps are."""

import math

import torch
from torch import nn

from hwbmpq.quant import parameter_groups

_RELATIVE = "is_relative"


def half_cosine(share: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0)))


def make_optimizer(
    model: nn.Module,
    *,
    kind: str,
    rate: float,
    weight_decay: float = 0.0,
    alpha_weight_decay: float = 0.0,
    momentum: float = 0.0,
    nesterov: bool = False,
    relative_steps: bool = False,
) -> torch.optim.Optimizer:
    """Of ``kind`` sgd, adam or adamw. ``relative_steps`` is for the latter two, and for ``set_rate``."""
    groups = parameter_groups(model, weight_decay=weight_decay, alpha_weight_decay=alpha_weight_decay)
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=nesterov)
    if relative_steps:
        steps = [{**group, "params": [p], _RELATIVE: True} for group in groups[2:] for p in group["params"]]
        groups = groups[:2] + steps
    return (torch.optim.Adam if kind == "adam" else torch.optim.AdamW)(groups, lr=rate)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its rate; to be called when gradients are there.

    Adam moves whatever it is given by about the rate. Relative steps are moved by that share of themselves: a step of 8 bits
    is a hundredth of one of 2 bits. In a few hundred updates that helped, in whole epochs it did not.
    """
    relative = [group for group in optimizer.param_groups if group.get(_RELATIVE)]
    for group in optimizer.param_groups:
        group["lr"] = rate
    if not relative:
        return
    found: list[torch.Tensor] = [group["params"][0].detach().abs().mean() for group in relative]
    for group, size in zip(relative, torch.stack(found).tolist(), strict=True):
        group["lr"] = rate * size
