"""Fixtures shared by all tests."""

import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch
from torch import Tensor, nn

# The same examples every time, however slow the machine is today.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile("steady")

collect_ignore = ["plugin"]
"""Looking for doctests in it would register what it holds."""


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def tiny_cnn() -> nn.Module:
    """Four layers in a row: conv, conv, linear, linear."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 12),
        nn.ReLU(),
        nn.Linear(12, 5),
    )


@pytest.fixture
def images() -> Tensor:
    """A batch for ``tiny_cnn``."""
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Where real images are, by the environment variable HWBMPQ_DATA."""
    folder = os.environ.get("HWBMPQ_DATA")
    if not folder or not (Path(folder) / "cifar10.npz").is_file():
        pytest.skip("HWBMPQ_DATA names no folder with cifar10.npz")
    return Path(folder)


@pytest.fixture(scope="session")
def plugin_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-in of tests/plugin, installed with pip into a folder of its own."""
    target, source = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("plugin")
    for path in (Path(__file__).parent / "plugin").iterdir():
        if path.is_file():
            (source / path.name).write_text(path.read_text())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True)
    return target
