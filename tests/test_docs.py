"""Every Python block and every hwbmpq command of the README and the docs runs, and prints what the page shows."""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import hwbmpq
from hwbmpq.cli.main import build_parser, main
from hwbmpq.registry import COST_MODELS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
ANYTHING = "…"


@dataclass(frozen=True)
class Block:
    """A fenced block; ``file`` is where it is to be saved (with + behind it: appended)."""

    language: str
    file: str
    text: str
    follows: bool
    """Whether nothing stands between it and the block before."""


def blocks(page: Path) -> list[Block]:
    found, end = [], -1
    text = page.read_text()
    for match in BLOCK.finditer(text):
        found.append(Block(match[1], match[2] or "", match[3], match.start() == end))
        end = match.end()
    return found


def python_blocks() -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{index}", block.text)
        for page in PAGES
        for index, block in enumerate(blocks(page))
        if block.language == "python"
    ]


@pytest.mark.parametrize("text", [t for _, t in python_blocks()], ids=[name for name, _ in python_blocks()])
def test_python_block_runs(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(COST_MODELS, "_known", COST_MODELS.registrations())  # a block may register a model
    names: dict[str, object] = {"__name__": "docs"}
    exec(compile(text, "docs", "exec"), names)
    assert "hwbmpq" in text  # it shows something of ours


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HWBMPQ_PROFILES", str(tmp_path / "none"))
    _make_the_readers_files()
    if "resnet8.pt" in page.read_text():
        _train_resnet8()
    output = ""
    for block in blocks(page):
        if block.file:
            name, _, append = block.file.partition(" ")
            before = Path(name).read_text() if append else ""
            Path(name).write_text(before + block.text)
        elif block.language == "sh":
            output = "".join(
                _run(line, capsys) for line in block.text.splitlines() if line.startswith("hwbmpq ")
            )
        elif block.language == "text" and block.follows and output:
            assert shows(block.text, output), f"{page.name} shows\n{block.text}\nbut it prints\n{output}"


def _run(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    command, _, comment = line.partition("#")
    command, _, file = command.partition(">")
    expected = 2 if comment.strip() == "exit 2" else 0
    code = main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    assert code == expected, f"{line}: {printed.err}"
    if file:
        Path(file.strip()).write_text(printed.out)
    return printed.err if file else printed.out + printed.err


def typed_in_a_checkout() -> list[tuple[str, str]]:
    """Commands that take minutes, or want the reader's own data: not run here."""
    return [
        (page.name, line)
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith("./hwbmpq.sh ") and not line.startswith(("./hwbmpq.sh test", "./hwbmpq.sh docs"))
    ]


@pytest.mark.parametrize(
    ("page", "line"),
    typed_in_a_checkout(),
    ids=[f"{p}-{i}" for i, (p, _) in enumerate(typed_in_a_checkout())],
)
def test_commands_that_are_not_run_are_understood(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words:
        assert build_parser().parse_args(words).run, line


def _make_the_readers_files() -> None:
    """What the README calls your own files."""
    network = hwbmpq.models.load_model("hwbmpq:resnet20").network.eval()
    torch.save(network.state_dict(), "resnet20.pt")
    torch.export.save(torch.export.export(network, (torch.randn(1, 3, 32, 32),)), "model.pt2")
    Path("net.py").write_text(
        "import torch\ndef make_net():\n    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())\n"
    )


def _train_resnet8() -> None:
    """Weights of the reader's own that know the digits, as demands on accuracy need them."""
    command = "compress --model hwbmpq:resnet8 --target mpic --method fp32 --epochs 5 --quiet --run-dir float"
    assert main(command.split()) == 0
    state = hwbmpq.training.RunDirectory("float").load_checkpoint()[0]["model"]
    names = hwbmpq.models.load_model("hwbmpq:resnet8").network.state_dict()
    torch.save({name: state[name] for name in names}, "resnet8.pt")


def shows(page: str, output: str) -> bool:
    """Whether the lines of a page are those of an output; a line with … alone stands for any lines."""
    wanted = [line.rstrip() for line in page.splitlines() if line.strip()]
    printed = [line.rstrip() for line in output.splitlines() if line.strip()]
    pattern = "".join("(?:.*\n)*" if line == ANYTHING else re.escape(line) + "\n" for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def test_shows_compares_lines() -> None:
    assert shows("a\n…\nd", "a  \nb\n\nc\nd\n")
    assert not shows("a\n…\nd", "a\nb\n")
    assert not shows("a", "a\nb")


def test_there_are_blocks_and_commands_to_run() -> None:
    assert len(python_blocks()) >= 6
    commands = [
        line
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    assert sum(line.startswith("hwbmpq ") for line in commands) >= 15
    shown = [block for page in PAGES for block in blocks(page) if block.language == "text" and block.follows]
    assert len(shown) >= 6


def test_the_plug_in_of_the_docs_is_the_one_that_the_tests_install() -> None:
    page = (ROOT / "docs" / "cost-models.md").read_text()
    assert (ROOT / "tests" / "plugin" / "hwbmpq_wear.py").read_text() in page


def without_blocks(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG"))],
    ids=lambda page: page.name,
)
def test_internal_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", without_blocks(page))
    links += [(source, "") for source in re.findall(r'<img src="([^":]+)"', page.read_text())]
    for target, anchor in links:
        place = page.parent / target if target else page
        assert place.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(place), (
                f"{page.name} links to {target}#{anchor}: {sorted(anchors(place))}"
            )


def test_every_page_is_in_the_overview_and_in_the_sites_navigation() -> None:
    overview, navigation = (ROOT / "docs" / "README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in navigation, f"{page.name} is not in the nav of mkdocs.yml"
        assert page.name == "README.md" or f"]({page.name})" in overview, f"docs/README.md has no {page.name}"


def test_paths_that_the_architecture_names_exist() -> None:
    """Files and folders of ours in backticks; files without a folder stand beside the one before."""
    for name in ("docs/architecture.md", "CONTRIBUTING.md"):
        for path in re.findall(
            r"`((?:hwbmpq|cli|models|tests|docs|benchmarks|hardware_profiles)/[\w/.]*)`",
            (ROOT / name).read_text(),
        ):
            assert (ROOT / path).exists(), f"{name} names {path}"


def test_no_page_names_a_place_of_ours() -> None:
    for page in PAGES:
        assert os.path.expanduser("~/") not in page.read_text()
