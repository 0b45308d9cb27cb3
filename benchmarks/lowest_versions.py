"""Tests hwbmpq with the lowest version of every dependency that pyproject.toml allows, in an environment of its own.

torch and torchvision stay at the versions of constraints.txt: other builds of them are gigabytes, and must fit together.

    python benchmarks/lowest_versions.py /tmp/lowest -o benchmarks/results/lowest_versions.json
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
AS_TESTED = ("torch", "torchvision")
TOOLS = ("pytest", "hypothesis", "jsonschema")
SAMPLE = [
    *("tests/test_structure.py", "tests/allocate", "tests/quant", "tests/costs", "tests/hardware"),
    *(
        "tests/cli/test_compress.py",
        "tests/cli/test_export.py",
        "tests/report",
        "tests/export/test_packed.py",
    ),
    *("tests/sensitivity", "tests/graph/test_trace.py"),
]


def project() -> dict[str, list[str]]:
    """The requirements of hwbmpq, and of its dev extra."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"runtime": content["dependencies"], "dev": content["optional-dependencies"]["dev"]}


def lowest() -> dict[str, str]:
    """The lowest version that is allowed, by package."""
    tested = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    found = {}
    for line in project()["runtime"]:
        requirement = Requirement(line)
        (bound,) = requirement.specifier
        found[requirement.name] = tested[requirement.name] if requirement.name in AS_TESTED else bound.version
    return found


def install(folder: Path) -> Path:
    """Make the environment, from wheels only; its interpreter."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    constraints = folder / "lowest.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in lowest().items()))
    tools = [line for line in project()["dev"] if Requirement(line).name in TOOLS]
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary",
        ":all:",
        "-c",
        str(constraints),
    ]
    subprocess.run([*command, *lowest(), *tools], check=True)
    return python


def test(python: Path, words: list[str]) -> tuple[str, list[str]]:
    """Run tests there; the last line that pytest prints, and the tests that failed."""
    # A later version's deprecations are errors in our tests; an earlier one's are what its users see anyway.
    command = [str(python), "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    lines = []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.strip())
    failed = [match[2] for line in lines if (match := re.match(r"(FAILED|ERROR) (tests/.+?)(?: - |$)", line))]
    return [line for line in lines if line][-1], failed


def installed(python: Path) -> dict[str, str]:
    sites = [str(path) for path in python.parents[1].glob("lib/python*/site-packages")]
    by_name = {
        re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version
        for d in importlib.metadata.distributions(path=sites)
    }
    return {name: by_name[re.sub(r"[-_.]+", "-", name).lower()] for name in lowest()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the environment, made anew")
    parser.add_argument("tests", nargs="*", default=SAMPLE, help="what to run (default: a sample)")
    parser.add_argument("-o", "--output", type=Path, help="where to write the result as JSON")
    args = parser.parse_args()
    python = install(args.folder)
    result, failed = test(python, args.tests)
    found = {
        "python": platform.python_version(),
        "versions": installed(python),
        "tests": args.tests,
        "result": result,
        "failed": failed,
    }
    if failed:  # tests of times fail on a busy machine: once more, by themselves
        found["failed ones alone"], failed = test(python, failed)
    if args.output:
        args.output.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
