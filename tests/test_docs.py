"""Every Python block and every hwbmpq command of the README and the docs runs."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import hwbmpq
from hwbmpq.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for index, (kind, text) in enumerate(BLOCK.findall(page.read_text())):
            if kind == language:
                found.append((f"{page.name}-{index}", text))
    return found


def commands() -> list[str]:
    lines = [line for _, text in blocks("sh") for line in text.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("hwbmpq ")]


@pytest.mark.parametrize("text", [t for _, t in blocks("python")], ids=[name for name, _ in blocks("python")])
def test_python_block_runs(text: str) -> None:
    names: dict[str, object] = {}
    exec(compile(text, "docs", "exec"), names)
    assert "hwbmpq" in names  # it shows something of ours


@pytest.mark.parametrize("line", commands())
def test_command_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = hwbmpq.models.load_model("hwbmpq:resnet20").network.eval()
    torch.save(network.state_dict(), "resnet20.pt")
    torch.export.save(torch.export.export(network, (torch.randn(1, 3, 32, 32),)), "model.pt2")
    Path("net.py").write_text(
        "import torch\ndef make_net():\n    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())\n"
    )
    assert main(shlex.split(line)[1:]) == 0


def test_there_are_blocks_and_commands_to_run() -> None:
    assert len(blocks("python")) >= 3
    assert len(commands()) >= 6


def test_internal_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
