"""Processes of a distributed run: one alone, and two under gloo."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hwbmpq import distributed
from hwbmpq.errors import HwbmpqError


def test_a_single_process_is_its_own_first_rank() -> None:
    assert (distributed.rank(), distributed.rank_count(), distributed.local_rank()) == (0, 1, 0)
    assert not distributed.is_distributed()
    assert distributed.on_first_rank(lambda: 5) == 5
    distributed.check_equal({}, "anything")
    distributed.leave()


def test_a_process_that_was_started_alone_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "1"):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        if value is not None:
            monkeypatch.setenv("WORLD_SIZE", value)
        assert not distributed.join(use_cuda=False)


def test_errors_pass_in_a_single_process() -> None:
    def fail() -> None:
        raise HwbmpqError("no")

    with pytest.raises(HwbmpqError, match=r"^no$"):
        distributed.on_first_rank(fail)


ROOT = Path(__file__).parents[1]


def two_ranks(script: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank of ``script`` writes with ``report``; both are started as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(2):
        environment = {
            **os.environ,
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "FOLDER": str(folder),
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", PRELUDE + script],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors[0][-3000:] + errors[1][-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


PRELUDE = """
import copy, json, os, sys
from pathlib import Path
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from hwbmpq import distributed as ranks
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.data import load_data
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import quantized_layers
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import resolve_settings

torch.set_num_threads(1)
FOLDER = Path(os.environ["FOLDER"])


class StandardisedConv(nn.Conv2d):
    def forward(self, input):
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


def network(norm):
    # With biases: sums of quantized products are often exactly 0, and rounding would decide what ReLU makes of them.
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), norm(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(),
        StandardisedConv(6, 6, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 12), nn.ReLU(), nn.Linear(12, 5),
    )


def report(**facts):
    (FOLDER / f"{ranks.rank()}.json").write_text(json.dumps(facts))
"""

WITHOUT_BATCH_STATISTICS = """
generator = torch.Generator().manual_seed(3)
batches = [
    (torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64), torch.randint(0, 5, (8,), generator=generator))
    for _ in range(9)
]


def allocator_for(model):
    return BitAllocator(
        model, batches[0][0][:1], target="generic", bits=(2, 4), budgets={"memory": "85%"},
        epochs=4, warmup_epochs=1, interval_epochs=1, activation_bits="same",
    )


def group_norm(channels):
    return nn.GroupNorm(2, channels)


def train(model, allocator, wrapped, part):
    optimizer = torch.optim.SGD([p for p in model.parameters()], 0.05, momentum=0.9)
    for epoch in range(3):
        for x, y in batches[3 * epoch : 3 * epoch + 3]:
            F.cross_entropy(wrapped(x[part]), y[part]).backward()
            allocator.step()
            optimizer.step()
            optimizer.zero_grad()
        allocator.epoch_end()
        if wrapped is not model:
            wrapped = DistributedDataParallel(model)


# Alone first: alpha and ranges come to rest, then the run that the two must reproduce.
alone = network(group_norm).double()
allocator = allocator_for(alone)
for x, _ in batches[:8]:
    alone(x)
start = copy.deepcopy(alone.state_dict())
train(alone, allocator, alone, slice(0, 8))

assert ranks.join(use_cuda=False)
share = slice(0, 4) if ranks.rank() == 0 else slice(4, 8)
model = network(group_norm).double()
together = allocator_for(model)
model.load_state_dict(start)
train(model, together, DistributedDataParallel(model), share)

def told(allocator):
    return [
        {"enbg": dict(d.sensitivities), "bits": {n: str(p) for n, p in d.after.items()}} for d in allocator.history
    ]

# What goes wrong on rank 0 goes wrong everywhere; what differs is noticed.
def fail():
    raise HwbmpqError("no allocation")

problems = []
for attempt in (lambda: ranks.on_first_rank(fail), lambda: ranks.check_equal(ranks.rank(), "the numbers")):
    try:
        attempt()
    except HwbmpqError as error:
        problems.append(str(error))
ranks.check_equal({"a": [1, 2]}, "the lists")
answer = ranks.on_first_rank(lambda: f"from rank {ranks.rank()}")

report(
    rank=ranks.rank(), count=ranks.rank_count(), alone=told(allocator), together=told(together), problems=problems,
    answer=answer,
    weights=max(
        float((a.detach() - b.detach()).abs().max()) for a, b in zip(alone.parameters(), model.parameters())
    ),
)
ranks.leave()
"""


APART = """
assert ranks.join(use_cuda=False)
model = network(lambda channels: nn.GroupNorm(2, channels))
allocator = BitAllocator(
    model, torch.zeros(1, 3, 8, 8), target="generic", bits=(2, 4), budgets={"weight_memory": "85%", "bops": "90%"},
    epochs=3, warmup_epochs=1, interval_epochs=1, activation_bits="apart",
)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
generator = torch.Generator().manual_seed(ranks.rank())
for _ in range(2):
    wrapped = DistributedDataParallel(model)
    for _ in range(3):
        x, y = torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)
        F.cross_entropy(wrapped(x), y).backward()
        allocator.step()
        optimizer.step()
        optimizer.zero_grad()
    allocator.epoch_end()
report(
    collected=[{n: {str(b): e for b, e in of.items()} for n, of in epoch.items()}
               for epoch in allocator.state_dict()["epoch_activation_errors"]],
    bits={name: str(layer.precision) for name, layer in quantized_layers(model)},
)
ranks.leave()
"""


def test_ranks_that_see_other_images_agree_on_the_errors_of_activations(tmp_path: Path) -> None:
    first, second = two_ranks(APART, tmp_path)
    assert len(first["collected"]) == 2
    assert all(errors["2"] > errors["8"] > 0 for epoch in first["collected"] for errors in epoch.values())
    assert first == second


def test_two_ranks_with_half_the_batch_reproduce_one_process(tmp_path: Path) -> None:
    """GroupNorm, float64; one layer computes its weight on the way, whose gradient DDP does not average."""
    found = two_ranks(WITHOUT_BATCH_STATISTICS, tmp_path)
    for rank, facts in enumerate(found):
        assert (facts["rank"], facts["count"]) == (rank, 2)
        assert len(facts["alone"]) == 3
        for alone, together in zip(facts["alone"], facts["together"], strict=True):
            assert together["enbg"] == pytest.approx(alone["enbg"], rel=1e-5)
            assert together["bits"] == alone["bits"]
        assert facts["weights"] < 1e-9
        assert facts["answer"] == "from rank 0"
        assert facts["problems"][1] == "the ranks do not agree on the numbers"
    widths = {bits for decision in found[0]["together"] for bits in decision["bits"].values()}
    assert {"W2A2", "W4A4"} <= widths
    assert [facts["problems"][0] for facts in found] == ["no allocation", "rank 0 failed: no allocation"]


WITH_BATCH_NORM = """
import hashlib
from hwbmpq.errors import RunStoppedError
from hwbmpq.pipeline import compress
from hwbmpq.training.hooks import TrainingHook

assert ranks.join(use_cuda=False)
data = load_data("fake", input_size=(3, 8, 8), classes=5, train_limit=48, test_limit=16)
# Wide activations at first, which use no alpha: DDP must learn of those that begin to train.
settings = resolve_settings(dict(
    model="own", target="generic", budgets={"memory": "80%"}, bits=[4, 16], activation_bits="same", data="fake",
    epochs=4, warmup_epochs=1, interval_epochs=1, batch_size=16, lr=0.05, augment="none",
) | CHANGED)


def summary(model, result):
    return {
        "weights": {n: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for n, p in model.named_parameters()},
        "alphas": {n: float(l.input_quantizer.alpha.detach()) for n, l in quantized_layers(model)},
        "bits": {n: str(l.precision) for n, l in quantized_layers(model)},
        "decisions": [d.to_dict()["sensitivities"] for d in result.decisions],
        "test": [result.evaluation.accuracy, result.evaluation.loss],
    }


class Killed(BaseException):
    pass


class KillAfter(TrainingHook):
    pass


def trained(run, state=None, stop=None):
    model = network(nn.BatchNorm2d)
    with torch.no_grad():
        if settings.start == "widest":
            model[0].weight += ranks.rank()  # DDP begins with those of rank 0
    if stop is None:
        return summary(model, compress(model, data, settings, run=run, state=state))
    def patch(trainer):
        end = trainer._close_epoch
        def ended(*result):
            end(*result)
            if trainer.progress.epoch == stop:
                raise Killed
        trainer._close_epoch = ended
    try:
        compress(model, data, settings, run=run, on_trainer=patch)
    except Killed:
        return None


whole = RunDirectory(FOLDER / "whole")
part = RunDirectory(FOLDER / "part")
if ranks.rank() == 0:
    whole.create()
    part.create()
distributed.barrier()
uninterrupted = trained(whole)
trained(part, stop=2)
distributed.barrier()
resumed = trained(part, state=part.load_checkpoint()[0])
report(uninterrupted=uninterrupted, resumed=resumed, files=sorted(p.name for p in whole.path.iterdir()))
ranks.leave()
"""


@pytest.mark.parametrize(
    "changed",
    [{}, {"weights": "given", "bits": [2, 4], "lr": 0.002, "settle": 0.0}],
    ids=["paper", "learned, from calibration"],
)
def test_with_batch_norm_all_ranks_hold_the_same_weights_and_bits(
    changed: dict[str, object], tmp_path: Path
) -> None:
    """Also after a resume, when clipping points train that did not when the network was prepared."""
    first, second = two_ranks(f"CHANGED = {changed!r}\n{WITH_BATCH_NORM}", tmp_path)
    assert first["uninterrupted"] == second["uninterrupted"]
    assert first["resumed"] == second["resumed"]
    assert first["resumed"]["bits"] == first["uninterrupted"]["bits"]
    assert first["resumed"]["decisions"] == first["uninterrupted"]["decisions"]
    assert first["resumed"]["weights"] == first["uninterrupted"]["weights"]
    assert "W4A4" in first["uninterrupted"]["bits"].values()
    assert len(first["uninterrupted"]["decisions"]) == (4 if changed else 3)
    assert "checkpoint.pt" in first["files"]
