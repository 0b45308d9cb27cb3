"""Tasks by name or from a file, checked before anything is trained."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hwbmpq.data.user_file import import_file
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import TASKS
from hwbmpq.tasks.base import Task

_FILE = "file:"


class TaskError(HwbmpqError):
    """A task that cannot be used."""


def get_task(spec: str | Task, *, label_smoothing: float = 0.0) -> Task:
    """The task that a name or ``file:PATH.py:NAME`` stands for; NAME is a ``Task``, or a function that returns one."""
    task = (
        spec
        if isinstance(spec, Task)
        else _made(_from_file(spec) if spec.startswith(_FILE) else TASKS.get(spec), spec)
    )
    for name, kind in (("metric", str), ("higher_is_better", bool)):
        if not isinstance(getattr(task, name, None), kind):
            raise TaskError(
                f"task {task.title} does not say its {name}",
                hint='set metric = "mean absolute error" and higher_is_better = False in the class, for example',
            )
    if label_smoothing:
        if not hasattr(task, "label_smoothing"):
            raise TaskError(f"task {task.title} has no label smoothing", hint="leave out --label-smoothing")
        task.label_smoothing = label_smoothing
    return task


def _from_file(spec: str) -> Any:
    path, _, name = spec.removeprefix(_FILE).rpartition(":")
    if not path.endswith(".py") or not name:
        raise TaskError(f"cannot read the task {spec!r}", hint=f"use {', '.join(TASKS)} or file:PATH.py:NAME")
    module = import_file(Path(path).expanduser())
    if not hasattr(module, name):
        raise TaskError(f"{path} has no {name}", hint="name a class that is a hwbmpq.tasks.Task")
    return getattr(module, name)


def _made(entry: Any, spec: str) -> Task:
    missing = sorted(getattr(entry, "__abstractmethods__", ()))
    if missing:
        raise TaskError(
            f"task {spec} has no {' and no '.join(f'{name}(outputs, targets)' for name in missing)}"
        )
    try:
        task = entry() if callable(entry) else entry
    except Exception as error:  # the user's own code
        raise TaskError(f"task {spec} raised {type(error).__name__} when it was made: {error}") from error
    if not isinstance(task, Task):
        raise TaskError(
            f"task {spec} is not a hwbmpq.tasks.Task but of type {type(task).__name__}",
            hint="write `class MyTask(hwbmpq.tasks.Task)` with metric, higher_is_better, loss and measure",
        )
    return task


def check_task(task: Task, run: Callable[[], Any], targets: Any) -> None:
    """Try a task on one batch: what is wrong with it is said before training, not after an epoch.

    ``run`` returns the network's outputs.
    """
    with torch.enable_grad():
        loss = _tried(task, "loss", run(), targets)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        found = (
            f"a tensor of shape {tuple(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise TaskError(
            f"task {task.title}: loss returned {found}, not one number as a tensor",
            hint="return the mean over the batch, such as torch.nn.functional.mse_loss(outputs, targets)",
        )
    if not loss.requires_grad:
        raise TaskError(
            f"task {task.title}: the loss does not depend on the network's outputs",
            hint="compute it with torch from outputs, without detach() or item()",
        )
    with torch.no_grad():
        measured = _tried(task, "measure", run(), targets)
    value = _tried(task, "value", [measured])
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isinf(value):
        raise TaskError(
            f"task {task.title}: value returned {value!r}, not a number",
            hint="let measure return a sum and a count, or write a value of your own that returns a float",
        )


def _tried(task: Task, method: str, *arguments: Any) -> Any:
    try:
        return getattr(task, method)(*arguments)
    except HwbmpqError:
        raise
    except Exception as error:  # the user's own code
        raise TaskError(
            f"task {task.title}: {method} raised {type(error).__name__}: {error}",
            hint="it gets what the network returns and what the loader yields beside the inputs; --debug shows where",
        ) from error
