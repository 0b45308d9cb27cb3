"""Runs in forked children, the result of a run that nothing happened to, and small disks."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests

from disks import why_no_disk
from faults import Trial
from runs import ForkServer, assert_finished, result_of


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    if sys.platform != "linux":
        pytest.skip("processes are watched as Linux does it")
    server = ForkServer(tmp_path_factory.mktemp("output"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def expected(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert_finished(server.run(server.compress("run"), folder=folder))
    return result_of(folder / "run")


@pytest.fixture
def trial(server: ForkServer, expected: dict[str, Any], tmp_path: Path) -> Callable[[int], Trial]:
    """A folder for a run that something happens to, with chances of its own."""
    return lambda seed: Trial(server=server, folder=tmp_path, expected=expected, chance=random.Random(seed))


@pytest.fixture(scope="session")
def _mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := why_no_disk(tmp_path_factory.mktemp("mounts")):
        pytest.skip(reason)
