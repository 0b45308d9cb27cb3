"""A run that is killed at any moment, and resumed, ends in the weights of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hwbmpq.training.run_directory import RunDirectory

SCRIPT = '''
import sys, time
from pathlib import Path
import torch
from torch import nn
from hwbmpq.data import load_data
from hwbmpq.pipeline import compress
from hwbmpq.training.hooks import TrainingHook
from hwbmpq.training.run_directory import CheckpointError, RunDirectory
from hwbmpq.training.settings import resolve_settings

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
    nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.ReLU(),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 12), nn.ReLU(), nn.Linear(12, 5),
)
data = load_data("fake", input_size=(3, 8, 8), classes=5, train_limit=64, test_limit=16)
settings = resolve_settings(dict(
    model="own", target="generic", budgets={"memory": "85%"}, bits=[2, 4], data="fake", epochs=6, warmup_epochs=2,
    interval_epochs=1, batch_size=8, lr=0.05, augment="flip-crop", checkpoint_minutes=1e-9,
))


class Slow(TrainingHook):
    """So that a kill finds it at work, not at an end."""

    def on_start(self, trainer):
        print("started", flush=True)

    def after_step(self, report):
        time.sleep(float(sys.argv[2]))


run = RunDirectory(sys.argv[1])
try:
    state = run.load_checkpoint()[0]
except CheckpointError:
    state = None
compress(model, data, settings, run=run, state=state, hooks=[Slow()])
print("finished", flush=True)
'''
ROOT = Path(__file__).parents[2]
STEPS = 6 * 8
PAUSE = 0.02


def start(run: Path, pause: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(run), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def finish(run: Path) -> None:
    process = start(run, 0.0)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]
    assert output.split() == ["started", "finished"]


def kill_at_work(run: Path, seconds: float) -> bool:
    """Let it work for a while, then kill it; False if it was done by then."""
    process = start(run, PAUSE)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n", process.communicate()[1][-3000:]
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    return process.returncode == -signal.SIGKILL


def final_state(run: Path) -> dict[str, torch.Tensor]:
    content, problem = RunDirectory(run).load_checkpoint()
    assert problem == ""
    assert content["progress"]["epoch"] == 6
    return {
        **content["model"],
        **{f"m{n}": s["momentum_buffer"] for n, s in content["optimizer"]["state"].items()},
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    run = RunDirectory(tmp_path_factory.mktemp("whole") / "run").create().path
    finish(run)
    return final_state(run)


def kill_and_finish(run: Path, moments: list[float], expected: dict[str, torch.Tensor]) -> None:
    RunDirectory(run).create()
    killed = sum(kill_at_work(run, moment) for moment in moments)
    assert killed, "every run was faster than its kill"
    finish(run)
    found = final_state(run)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert not list(run.glob("*.unfinished"))


def moments(seed: int, count: int) -> list[float]:
    """Seconds of work before a kill: about all of them together fill the run."""
    generator = random.Random(seed)
    return [generator.uniform(0.0, 2 * STEPS * PAUSE / (count + 1)) for _ in range(count)]


def test_a_run_killed_three_times_ends_in_the_same_weights(
    tmp_path: Path, uninterrupted: dict[str, torch.Tensor]
) -> None:
    kill_and_finish(tmp_path / "run", moments(0, 3), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_runs_killed_at_random_end_in_the_same_weights(
    seed: int, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]
) -> None:
    kill_and_finish(tmp_path / "run", moments(seed, 1 + seed % 3), uninterrupted)
