"""The rules of the house that a machine can check."""

import ast
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "hwbmpq": "hwbmpq",
    "cli": "hwbmpq.cli",
    "models": "hwbmpq.models",
    "hardware_profiles": "hwbmpq.hardware_profiles",
}

OPEN_TO_ALL = {"amounts", "errors", "values", "whole_file"}
METHOD = {"", "allocate", "costs", "graph", "hardware", "quant", "ranks", "sensitivity"}
"""What the modules at the top of hwbmpq put together."""
MAY_IMPORT = {
    # For type checkers only: names resolve on first use.
    "__init__": {
        "allocate",
        "allocator",
        "costs",
        "data",
        "deployment",
        "export",
        "graph",
        "hardware",
        "host_memory",
        "loading",
        "measure",
        "models",
        "page",
        "pipeline",
        "quant",
        "ranks",
        "report",
        "sensitivity",
        "training",
    },
    "__main__": {"cli"},
    "allocate": {"allocate", "costs"},
    "amounts": set(),
    "allocator": METHOD | {"decision_schedule", "decisions", "methods", "question"},
    # All but cli and pipeline for type checkers only.
    "cli": {
        "cli",
        "",
        "allocate",
        "costs",
        "data",
        "decisions",
        "deployment",
        "export",
        "graph",
        "hardware",
        "measure",
        "models",
        "pipeline",
        "question",
        "report",
        "run_files",
        "whole_file",
        "training",
    },
    "costs": {"costs", "hardware"},
    "data": {"data", "torchvision_import"},
    "decision_schedule": set(),
    "decisions": {"allocate", "costs"},
    "deployment": {"data", "export", "quant", "training"},
    "errors": set(),
    "export": {"export", "", "graph", "quant"},
    "graph": {"graph", "quant"},
    "hardware": {"hardware"},
    "hardware_profiles": set(),
    "host_memory": set(),
    "integrations": {"integrations", "allocator", "quant", "torchvision_import"},
    "loading": {"export", "models"},
    "measure": {"measure", "", "costs", "export", "graph", "hardware", "quant"},
    "methods": METHOD | {"question"},
    "models": {"models", "torchvision_import"},
    "page": {"page", "report"},
    "pipeline": METHOD
    | {"allocator", "data", "decisions", "host_memory", "methods", "planning", "question", "report"}
    | {"deployment", "export", "page", "reporting", "training", "without_training"},
    "planning": METHOD | {"data", "question", "report"},
    "quant": {"quant"},
    "question": {"costs", "graph", "hardware"},
    "ranks": set(),
    "report": {"report", "", "allocate", "costs", "run_files"},
    "reporting": {"", "graph", "question", "report"},
    "run_files": set(),
    "sensitivity": {"sensitivity", "quant"},
    "testing": {"quant", "graph"},
    "training": {"training", "data", "quant", "ranks", "run_files", "sensitivity"},
    "torchvision_import": set(),
    "values": set(),
    "whole_file": set(),
    "without_training": METHOD | {"allocator", "data", "training"},
}
HOME_OF = {
    "qonnx": {"export"},
    "highspy": {"allocate"},
    "PIL": {"data"},
    "jinja2": {"page"},
    "matplotlib": {"cli", "page"},
    "pydantic": {"hardware", "costs", "export", "measure", "training"},
    "lightning": {"integrations"},
    "pyomo": {"allocate"},
    "rich": {"cli"},
    "safetensors": {"models"},
    "sklearn": {"data"},
    "swiglpk": {"allocate"},
    "timm": set(),
    "transformers": {"integrations"},
    "yaml": {"hardware", "training"},
}
WITHOUT_TORCH = {
    "amounts",
    "__init__",
    "__main__",
    "allocate",
    "cli",
    "costs",
    "decision_schedule",
    "decisions",
    "errors",
    "hardware",
    "host_memory",
    "page",
    "report",
    "run_files",
    "whole_file",
    "testing",
    "values",
}


def python_files() -> list[tuple[str, Path]]:
    files = []
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [*package.split("."), *path.relative_to(ROOT / folder).with_suffix("").parts]
            files.append((parts[1], path))  # the part of hwbmpq it belongs to
    return files


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += (
                [f"hwbmpq.{alias.name}" for alias in node.names]
                if node.module == "hwbmpq"
                else [node.module or ""]
            )
    return found


@pytest.mark.parametrize(
    ("part", "path"), python_files(), ids=lambda value: str(value).replace(str(ROOT) + "/", "")
)
def test_imports_point_the_right_way(part: str, path: Path) -> None:
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "hwbmpq":
            assert rest.partition(".")[0] in MAY_IMPORT[part] | OPEN_TO_ALL, f"{part} imports {name}"
        assert top not in ("cli", "models", "hardware_profiles"), f"{name}: import it from hwbmpq"
        assert part in HOME_OF.get(top, {part}), f"{top} belongs in {HOME_OF.get(top)}"
        assert top != "torch" or part not in WITHOUT_TORCH, f"{part} imports torch"


def test_packages_in_pyproject_are_the_folders_with_code() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = []
    for folder, package in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.append(".".join([package, *init.parent.relative_to(ROOT / folder).parts]))
    assert sorted(listed) == sorted(found)


def test_help_and_import_stay_without_torch() -> None:
    code = (
        "import sys, hwbmpq, hwbmpq.cli.main as cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'timm', 'networkx', 'numpy'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_answers_within_half_a_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hwbmpq", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5


def test_every_public_name_resolves_and_unknown_ones_say_so() -> None:
    import hwbmpq

    for name in hwbmpq.__all__:
        assert getattr(hwbmpq, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'; public names:"):
        hwbmpq.nothing  # noqa: B018
