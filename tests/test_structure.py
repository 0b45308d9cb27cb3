"""The rules of the house that a machine can check."""

import ast
import functools
import re
import subprocess
import sys
import timeit
import tomllib
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"hwbmpq": "hwbmpq", "cli": "hwbmpq.cli", "models": "hwbmpq.models"}
LAYERS = """
    errors
    units values normalisation registry io deprecated hardware_profiles
    hardware distributed
    quant data
    costs graph models tasks
    allocate sensitivity
    report
    search
    training integrations
    export
    measure
    pipeline testing
    cli __main__ __init__
"""
"""The parts of hwbmpq from the bottom up: each may import what stands above it here, and itself."""
LEVEL = {part: level for level, line in enumerate(LAYERS.split("\n")) for part in line.split()}
WITHOUT_TORCH = "allocate cli costs deprecated errors hardware io registry report units values".split()
HOMES = """highspy=allocate jinja2=report lightning=integrations onnxruntime=export,measure pyomo=allocate
    qonnx=export rich=cli sklearn=data swiglpk=allocate transformers=integrations"""
HOME_OF = dict(home.split("=") for home in HOMES.split())
"""Packages that only some parts may import."""


@functools.cache
def modules() -> dict[str, Path]:
    return {
        ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts]): path
        for folder, package in FOLDERS.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def imports(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name for name in names if name in modules()] or [node.module or ""]
    return found


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module: str) -> None:
    part = module.split(".")[1]
    for name in imports(modules()[module].read_text()):
        top, _, rest = name.partition(".")
        if top == "hwbmpq" and rest and part not in ("cli", "__init__"):  # these name types of all
            assert LEVEL[rest.partition(".")[0]] <= LEVEL[part], f"{part} imports {name}"
        assert top not in ("cli", "models", "hardware_profiles"), f"{name}: import it from hwbmpq"
        assert part in HOME_OF.get(top, part).split(","), f"{top} belongs in {HOME_OF.get(top)}"
        assert top != "torch" or part not in WITHOUT_TORCH, f"{part} imports torch"


def test_no_module_imports_itself_through_others() -> None:
    """But for types: what stands below ``if TYPE_CHECKING`` is never imported."""
    graph, types = nx.DiGraph(), r"^if _?TYPE_CHECKING:\n(?:    .*\n|\n)*"
    for module, path in modules().items():
        source = re.sub(types, "if 0: ...\n", path.read_text(), flags=re.M)
        graph.add_edges_from((module, name) for name in imports(source) if name in modules())
    assert [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1] == []


def test_few_modules_lie_loose_and_pyproject_lists_the_folders_with_code() -> None:
    loose = sorted(path.stem for path in (ROOT / "hwbmpq").glob("[!_]*.py"))
    assert loose == "distributed errors io normalisation pipeline registry testing units values".split()
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [name.removesuffix(".__init__") for name in modules() if name.endswith(".__init__")]
    assert sorted(listed) == sorted([*found, "hwbmpq.hardware_profiles"])


def test_help_stays_without_torch_and_answers_within_half_a_second() -> None:
    code = (
        "import sys, hwbmpq, hwbmpq.cli.main as cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'timm', 'networkx', 'numpy'}))"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True).splitlines()[-1] == "[]"
    assert min(timeit.repeat(lambda: subprocess.check_output(command), number=1, repeat=3)) < 0.5


def test_every_public_name_resolves_and_unknown_ones_say_so() -> None:
    import hwbmpq

    for name in hwbmpq.__all__:
        assert getattr(hwbmpq, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'; public names:"):
        hwbmpq.nothing  # noqa: B018
