"""The processes of a distributed run, seen from one of them; a run of one process is its own first rank."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, distributed

from hwbmpq.errors import HwbmpqError, OtherRankError, RunStoppedError

Result = TypeVar("Result")


def is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    return distributed.get_rank() if is_distributed() else 0


def rank_count() -> int:
    return distributed.get_world_size() if is_distributed() else 1


def local_rank() -> int:
    """Which of this machine's processes this is, as torchrun says."""
    return int(os.environ.get("LOCAL_RANK", "0")) if is_distributed() else 0


def join(use_cuda: bool) -> bool:
    """Join the other processes that torchrun started; False if this process was started alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or is_distributed():
        return is_distributed()
    if use_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # nccl sends objects by the current one
    distributed.init_process_group("nccl" if use_cuda else "gloo")
    return True


def leave() -> None:
    if is_distributed():
        distributed.destroy_process_group()


@contextmanager
def losses_told(hint: str) -> Iterator[None]:
    """While other ranks work along: if one goes, or torchrun ends this one, say so in a sentence instead of a traceback."""
    if not is_distributed():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise RunStoppedError(
            f"rank {rank()}: torchrun ended it, as it does when another rank has failed", hint=hint
        )

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except RuntimeError as error:  # gloo has no type of its own for it
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        raise HwbmpqError(
            f"rank {rank()}: another rank was killed, or cannot be reached", hint=hint
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def on_first_rank(work: Callable[[], Result]) -> Result:
    """Do ``work`` on rank 0 only; all ranks get what it returns, or raise if it raised there."""
    if not is_distributed():
        return work()
    answer: list[object] = [None, None]
    failure: HwbmpqError | None = None
    if rank() == 0:
        try:
            answer = [work(), None]
        except HwbmpqError as error:
            failure = error
            answer = [None, str(error)]
    distributed.broadcast_object_list(answer, src=0)
    if failure is not None:
        raise failure
    if answer[1] is not None:
        raise OtherRankError(f"rank 0 failed: {answer[1]}")
    return answer[0]  # type: ignore[return-value]


def mean(values: Tensor) -> Tensor:
    """The mean over all ranks, on each of them."""
    values = values.clone()
    distributed.all_reduce(values)
    return values / rank_count()


def check_equal(value: object, what: str) -> None:
    """An error unless all ranks hold the same ``value``."""
    if not is_distributed():
        return
    values: list[object] = [None] * rank_count()
    distributed.all_gather_object(values, value)
    if any(other != values[0] for other in values):
        raise HwbmpqError(f"the ranks do not agree on {what}", hint="resume from the last checkpoint")
