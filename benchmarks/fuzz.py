"""Coverage-guided fuzzing of everything that reads what others wrote: profiles, packed files, budgets, results of kits,
settings, records and checkpoints of runs, sensitivities, arrays, exported programs.

Only ``HwbmpqError`` may come out, within five seconds and 512 MiB, of which torch and the fuzzer take most. Files with a
checksum get one that fits (packed files and results of kits but for one input in four), or the fuzzer would never come
past it. Where there is JSON in them, half of the changes are made value by value, the others byte by byte.

    pip install atheris==3.0.0        # not among the project's own requirements
    python benchmarks/fuzz.py [--seconds 240] [--inputs 50000] [--only budget] [--json benchmarks/results/fuzz.json]

``--only`` with ``--json`` replaces the figures of these targets and leaves the others. Inputs that fail are kept in
``build/fuzz``, or where ``--kept`` says.
"""

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz_changes import mutated
from fuzz_run_targets import checkpoint, config, history, npz, pt2, records, sensitivity
from fuzz_targets import budget, kit, packed, profile

LONGEST_S = 5.0
MOST_MIB = 512
_NEW = (config, records, history, checkpoint, sensitivity, npz, pt2)
TARGETS = {target.__name__: target for target in (profile, packed, budget, kit, *_NEW)}
WITHOUT_TORCH = ("cli.render.report", "report.html")
ALL_READERS = (
    "cli.options.settings",
    "costs",
    "export.packed.load",
    "measure",
    "models.exported",
    "pipeline",
)
WITH_JSON = ("packed", "kit", "records", "sensitivity", "pt2")
"""Targets whose inputs are a byte, JSON, and bytes."""


# one target, in a process of its own: libFuzzer never returns


class Counts:
    """What was tried, written down every second: libFuzzer ends the process as it likes."""

    def __init__(self, path: Path, inputs: int) -> None:
        self._path, self._written, self._inputs = path, 0.0, inputs
        self.tried = self.accepted = self.refused = self.slow = 0
        self.slowest = 0.0

    def add(self, seconds: float, *, is_accepted: bool) -> None:
        self.tried += 1
        self.accepted += is_accepted
        self.refused += not is_accepted
        self.slow += seconds > LONGEST_S
        self.slowest = max(self.slowest, seconds)
        if time.monotonic() > self._written + 1 or self.tried >= self._inputs > 0:
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        facts = {
            "inputs": self.tried,
            "accepted": self.accepted,
            "refused": self.refused,
            "over_5_s": self.slow,
            "slowest_s": round(self.slowest, 3),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(facts))
        temporary.replace(self._path)


def fuzz(target: str, seconds: int, inputs: int, folder: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["hwbmpq"]):
        for module in WITHOUT_TORCH if target in ("records", "history") else ALL_READERS:
            importlib.import_module(f"hwbmpq.{module}")
    from hwbmpq.errors import HwbmpqError

    read, seeds = TARGETS[target](folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    counts = Counts(folder / "counts.json", inputs)

    def one_input(data: bytes) -> None:
        start = time.process_time()
        is_accepted = True
        try:
            read(data)
        except HwbmpqError:
            is_accepted = False
        counts.add(time.process_time() - start, is_accepted=is_accepted)

    options = {"max_total_time": seconds, "rss_limit_mb": MOST_MIB, "timeout": 30, "seed": 1, "verbosity": 1}
    options |= {"max_len": 1 << 18} | ({"runs": inputs} if inputs else {})
    words = [f"-{name}={value}" for name, value in options.items()]
    mutator = {"custom_mutator": mutated} if target in WITH_JSON else {}
    atheris.Setup([sys.argv[0], *words, f"-artifact_prefix={folder}/", str(corpus)], one_input, **mutator)
    atheris.Fuzz()


def run(target: str, seconds: int, inputs: int, kept: Path) -> dict[str, Any]:
    """Fuzz one target; what was tried, and what went wrong, with the input and the log of a failure in ``kept``."""
    with tempfile.TemporaryDirectory() as name:
        words = [sys.executable, __file__, "--target", target, "--folder", name]
        words += ["--seconds", str(seconds), "--inputs", str(inputs)]
        start = time.monotonic()
        # Both together: libFuzzer reports on stderr, atheris prints the exception that ended it on stdout.
        ended = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(),
        )
        counts = Path(name) / "counts.json"
        if not counts.exists():
            raise SystemExit(f"{target}: {ended.stdout[-3000:]}")
        found: dict[str, Any] = json.loads(counts.read_text())
        found["seconds"] = round(time.monotonic() - start)
        states = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", ended.stdout)
        found["edges_of_seeds"] = _edges_of_seeds(ended.stdout)
        last = states[-1] if states else (0, 0, 0)
        found |= dict(zip(("edges_covered", "features", "corpus"), map(int, last), strict=True))
        found["failures"] = int(ended.returncode != 0)
        if ended.returncode:
            print(ended.stdout[-6000:], file=sys.stderr)
            for path in keep_failure(Path(name), target, ended.stdout, kept):
                print(f"{target}: kept {path}", file=sys.stderr)
        return found


def keep_failure(folder: Path, target: str, log: str, kept: Path) -> list[Path]:
    """Copy the inputs that libFuzzer has written out of its folder, which is removed, and write its log beside them."""
    kept.mkdir(parents=True, exist_ok=True)
    inputs = [path for path in folder.iterdir() if path.name.startswith(("crash-", "oom-", "timeout-"))]
    for path in inputs:
        shutil.copy(path, kept / f"{target}-{path.name}")
    (kept / f"{target}.log").write_text(log)
    return [kept / f"{target}.log", *(kept / f"{target}-{path.name}" for path in inputs)]


def _edges_of_seeds(log: str) -> int | None:
    started = re.search(r"INITED cov: (\d+)", log)
    return int(started[1]) if started else None


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=240, help="for each target")
    parser.add_argument("--inputs", type=int, default=0, help="for each target at most; 0: as time allows")
    parser.add_argument("--only", choices=TARGETS, action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--kept", type=Path, default=Path("build/fuzz"), help="folder for inputs that failed, and for the log"
    )
    parser.add_argument("--target", choices=TARGETS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.target:
        fuzz(args.target, args.seconds, args.inputs, args.folder)
        return
    from hwbmpq.measure.kit_runner import machine_facts

    found: dict[str, Any] = {}
    for target in args.only or TARGETS:
        found[target] = run(target, args.seconds, args.inputs, args.kept)
        print(target, json.dumps(found[target]))
    if args.json:
        before = json.loads(args.json.read_text())["targets"] if args.only and args.json.exists() else {}
        facts = {
            "machine": machine_facts(),
            "fuzzer": "atheris 3.0.0 (libFuzzer)",
            "targets": {target: found.get(target, before.get(target)) for target in {**before, **found}},
        }
        args.json.write_text(json.dumps(facts, indent=2) + "\n")
    raise SystemExit(any(one["failures"] or one["over_5_s"] for one in found.values()))


if __name__ == "__main__":
    main()
