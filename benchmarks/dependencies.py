"""What each dependency costs: seconds to import it, bytes on disk, and the licence it comes with.

Imports are timed in fresh processes, files in the page cache, medians of five: alone, and in a process that has imported
torch already, as most commands have. Bytes are those of the files that a distribution lists as its own. "Brings": what
would go if only this dependency went, itself included. Extras are measured where they are installed.

    python benchmarks/dependencies.py -o benchmarks/results/dependencies.json
"""

import argparse
import importlib.metadata
import json
import platform
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
RUNS = 5
# What hwbmpq imports of it, where that is not the package's own name; nobody imports onnxscript but torch.onnx.
IMPORTS = {
    "jinja2": "import jinja2",
    "matplotlib": "import matplotlib.figure",
    "onnx-ir": "import onnx_ir",
    "pillow": "from PIL import Image",
    "pydantic": "from pydantic import BaseModel",
    "pyomo": "import pyomo.environ",
    "pyyaml": "import yaml",
    "qonnx": "import qonnx.core.modelwrapper, qonnx.core.onnx_exec",
    "rich": "import rich.console, rich.progress, rich.table",
    "safetensors": "import safetensors.torch",
    "scikit-learn": "import sklearn.datasets",
    "scipy": "import scipy.optimize, scipy.sparse",
    "torchvision": "from hwbmpq.data.torchvision_import import import_torchvision; import_torchvision()",
    "timm": "from hwbmpq.data.torchvision_import import import_timm; import_timm()",
    "lightning": "from hwbmpq.data.torchvision_import import import_torchvision; import_torchvision(); import lightning.pytorch",
}
COMMANDS = {
    "--help": ["--help"],
    "targets list": ["targets", "list"],
    "inspect": ["inspect", "--model", "hwbmpq:resnet8"],
    "plan": ["plan", "--model", "hwbmpq:resnet8", "--target", "mpic", "--sensitivity", "uniform", "--brief"],
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> tuple[list[str], dict[str, list[str]]]:
    """The dependencies in pyproject.toml, and those of the extras for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: lines for name, lines in project["optional-dependencies"].items() if name not in ("dev", "docs")
    }
    return names(project["dependencies"]), {extra: names(lines) for extra, lines in extras.items()}


def names(lines: Iterable[str]) -> list[str]:
    return [canonical(Requirement(line).name) for line in lines]


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def needed_by(roots: Iterable[str]) -> set[str]:
    """All distributions that these need, themselves included, without extras."""
    found: set[str] = set()
    waiting = [root for root in roots if is_installed(root)]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonical(requirement.name))
    return found


def size(name: str) -> int:
    """Bytes of the files that a distribution lists as its own."""
    files = importlib.metadata.files(name) or []
    paths = [Path(str(file.locate())) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file())


def licence(name: str) -> str:
    """As short as the metadata have it: expression, classifier, or the first line of the text."""
    metadata = importlib.metadata.metadata(name)
    if metadata.get("License-Expression"):
        return str(metadata["License-Expression"])
    classifiers = [c for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    short = [c.rpartition(" :: ")[2] for c in classifiers]
    return (
        ", ".join(x for x in short if x != "OSI Approved")
        or str(metadata.get("License", "?")).splitlines()[0]
    )


def import_seconds(statement: str, before: str = "pass") -> float:
    code = f"import time\n{before}\nt = time.perf_counter()\n{statement}\nprint(time.perf_counter() - t)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    runs = [
        float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
        for _ in range(RUNS + 1)
    ]
    return statistics.median(runs[1:])  # the first fills the page cache


def imported_by(command: list[str], known: dict[str, str]) -> list[str]:
    """Which dependencies a command imports, directly or through others."""
    code = (
        "import json, sys, contextlib, io\nimport hwbmpq.cli.main as cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    cli.main({command!r})\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    modules = set(json.loads(output.stdout.splitlines()[-1]))
    return sorted(name for name, module in known.items() if module in modules)


def module_of(name: str) -> str:
    """The top-level module of a distribution."""
    match = re.match(r"(?:import|from) (\w+)", IMPORTS.get(name, f"import {name}"))
    assert match is not None
    return name if match[1] == "hwbmpq" else match[1]


def measure(name: str, others: list[str]) -> dict[str, Any]:
    """``others`` are the dependencies that stay if this one goes."""
    statement = IMPORTS.get(name, f"import {name}")
    brings = needed_by([*others, name]) - needed_by(others)
    found = {
        "version": importlib.metadata.version(name),
        "licence": licence(name),
        "import_s": import_seconds(statement),
        "import_after_torch_s": import_seconds(statement, "import torch"),
        "bytes": size(name),
        "needs": sorted(needed_by([name]) - {name}),
        "needs_bytes": sum(map(size, needed_by([name]))),
        "brings": sorted(brings - {name}),
        "brings_bytes": sum(map(size, brings)),
    }
    print(name, found, flush=True)
    return found


def machine() -> dict[str, Any]:
    from hwbmpq.measure.kit_runner import machine_facts

    return {**machine_facts(), "pip": importlib.metadata.version("pip"), "platform": platform.platform()}


def tables(content: dict[str, Any]) -> dict[str, str]:
    """Markdown, by the part of the content that it shows."""

    def rows(found: dict[str, dict[str, Any]]) -> str:
        head = ["package", "version", "import", "after torch", "on disk", "goes with it", "licence"]
        lines = [head, ["---"] * len(head)]
        for name, facts in found.items():
            times = [f"{1e3 * facts[key]:.0f} ms" for key in ("import_s", "import_after_torch_s")]
            sizes = [f"{facts[key] / 2**20:.1f} MiB" for key in ("bytes", "brings_bytes")]
            lines.append([f"`{name}`", facts["version"], *times, *sizes, facts["licence"]])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    licences: dict[str, list[str]] = {}
    for name, text in content["licences"].items():
        licences.setdefault(text, []).append(name)
    return {
        "runtime": rows(content["runtime"]),
        "extras": rows(content["extras"]),
        "licences": "\n".join(
            ["| licence | distributions |", "| --- | --- |"]
            + [f"| {text} | {', '.join(sorted(found))} |" for text, found in sorted(licences.items())]
        ),
        "commands": "\n".join(
            ["| command | imports |", "| --- | --- |"]
            + [f"| `hwbmpq {name}` | {', '.join(found)} |" for name, found in content["commands"].items()]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    runtime, extras = declared()
    optional = [name for lines in extras.values() for name in lines if is_installed(name)]
    everything = sorted(needed_by(runtime))
    content: dict[str, Any] = {
        "machine": machine(),
        "runtime": {name: measure(name, [x for x in runtime if x != name]) for name in runtime},
        "extras": {name: measure(name, runtime) for name in optional},
        "extras_not_installed": [n for lines in extras.values() for n in lines if not is_installed(n)],
        "distributions": len(everything),
        "bytes": sum(map(size, everything)),
        "licences": {name: licence(name) for name in everything},
        "commands": {
            name: imported_by(line, {x: module_of(x) for x in runtime}) for name, line in COMMANDS.items()
        },
    }
    for table in tables(content).values():
        print(table, end="\n\n")
    if args.output:
        args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
