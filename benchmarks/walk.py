"""The walk through ``compress``: which files of ours a run enters, how deep its calls go, and the calls on one screen.

A small network is compressed in this process with a profiler on. Counted are the functions of ours (hwbmpq/, cli/, models/) that run:

- a *file* is entered when one of its functions is called; what a module does while it is imported does not count, the functions
  that it calls then included;
- *depth* is the number of our functions on the stack; libraries between two of ours count nothing, nor do comprehensions, generator
  expressions and lambdas (Python 3.12 and later inline some of them).

By this count 0.1.0 enters 141 files, at most 26 deep. It measures the hwbmpq that it imports, so that another checkout can be measured too:

    python benchmarks/walk.py --page docs/architecture.md
    PYTHONPATH=../other-checkout python benchmarks/walk.py --chains 5 --files 20
"""

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not os.environ.get("PYTHONPATH"):
    sys.path.insert(0, str(ROOT))

import hwbmpq  # noqa: E402 (after the path)
from hwbmpq.cli.main import main as run_command  # noqa: E402

CHECKOUT = Path(hwbmpq.__file__).resolve().parents[1]
FOLDERS = tuple(f"{CHECKOUT / name}{os.sep}" for name in ("hwbmpq", "cli", "models"))
COMMAND = [
    *("compress", "--model", "hwbmpq:resnet8", "--target", "mpic", "--budget", "memory=24KiB"),
    *(
        "--data",
        "digits",
        "--train-images",
        "64",
        "--test-images",
        "32",
        "--batch-size",
        "16",
        "--epochs",
        "3",
    ),
]
_MARKS = re.compile(r"(<!-- walk -->\n).*?(<!-- end of walk -->)", re.DOTALL)
_FEW = 3
"""A call that enters fewer files than this is not worth a line of the screen."""


@dataclass(eq=False)
class Call:
    """A function where it is called from: one node for all calls along the same path."""

    code: CodeType | None = None
    parent: "Call | None" = None
    children: "dict[CodeType, Call]" = field(default_factory=dict)
    times: int = 0

    def called(self, code: CodeType) -> "Call":
        child = self.children.setdefault(code, Call(code=code, parent=self))
        child.times += 1
        return child

    def below(self) -> "Iterator[Call]":
        """This call and all that it leads to."""
        if self.code:
            yield self
        for child in self.children.values():
            yield from child.below()

    def chain(self) -> "list[Call]":
        """The calls that lead here, the first one first."""
        found, call = [], self
        while call.parent:
            found.append(call)
            call = call.parent
        return found[::-1]

    @property
    def file(self) -> str:
        assert self.code
        return str(Path(self.code.co_filename).relative_to(CHECKOUT))

    @property
    def name(self) -> str:
        assert self.code
        return self.code.co_qualname

    def files_below(self) -> int:
        return len({call.file for call in self.below()})


class Profiler:
    """Keeps our part of each thread's stack as a path in a tree of calls."""

    def __init__(self) -> None:
        self.root = Call()
        self._threads = threading.local()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(FOLDERS):
            return
        stack: list[Call | None] = self._threads.__dict__.setdefault("stack", [self.root])
        if event == "return":
            if len(stack) > 1:  # what began before the profiler has no entry
                stack.pop()
            return
        here = stack[-1]
        if code.co_name == "<module>" or here is None:
            stack.append(None)  # an import, and all that it runs
        elif code.co_name.startswith("<"):
            stack.append(here)
        else:
            stack.append(here.called(code))


def walk(words: list[str]) -> Call:
    """Run a command in an empty folder, silently; the calls that it made."""
    profiler = Profiler()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        output = io.StringIO()
        threading.setprofile(profiler)
        sys.setprofile(profiler)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = run_command(words)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if code:
        raise SystemExit(f"the command failed:\n{output.getvalue()}")
    return profiler.root


def screen(root: Call, lines: int) -> Iterator[str]:
    """The calls that enter the most files, as a tree of at most so many lines."""
    shown: set[Call] = set()
    leaves = [child for child in root.children.values() if child.files_below() >= _FEW]
    while leaves and len(shown) + len(leaves) <= lines:
        widest = max(leaves, key=Call.files_below)
        leaves.remove(widest)
        shown.add(widest)
        more = [child for child in widest.children.values() if child.files_below() >= _FEW]
        if len(shown) + len(leaves) + len(more) <= lines:
            leaves += more
    shown |= set(leaves[: lines - len(shown)])
    for call in root.below():
        if call in shown:
            indent = "  " * (len(call.chain()) - 1)
            yield f"{indent + call.name:<44} {call.file} ({call.files_below()} files)"


def deepest(root: Call) -> list[list[Call]]:
    """The deepest chain into each folder, the deepest first."""
    found: dict[str, list[Call]] = {}
    for call in root.below():
        chain, folder = call.chain(), str(Path(call.file).parent)
        if len(chain) > len(found.get(folder, ())):
            found[folder] = chain
    return sorted(found.values(), key=len, reverse=True)


def lines_entered(root: Call) -> Counter[str]:
    """Lines of the functions that ran, by file."""
    found: Counter[str] = Counter()
    for code in {call.code for call in root.below()}:
        assert code
        numbers = [line for _, _, line in code.co_lines() if line]
        file = str(Path(code.co_filename).relative_to(CHECKOUT))
        found[file] += max(numbers) - min(numbers) + 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", type=int, default=40, help="lines of the screen (default: 40)")
    parser.add_argument("--chains", type=int, default=1, help="deepest chains to show (default: 1)")
    parser.add_argument(
        "--files", type=int, default=0, help="files to show of which the fewest lines ran (default: 0)"
    )
    parser.add_argument("--page", type=Path, help="write figures and calls between this page's walk marks")
    parser.add_argument("--list", action="store_true", help="all files that are entered")
    args = parser.parse_args()
    root = walk(COMMAND)
    lines = lines_entered(root)
    chains = deepest(root)
    figures = f"{len(lines)} files entered, at most {len(chains[0])} of our functions deep"
    text = "\n".join([f"hwbmpq {' '.join(COMMAND)}\n{figures}\n", *screen(root, args.lines)])
    print(text)
    if args.page:
        page = args.page.read_text(encoding="utf-8")
        args.page.write_text(
            _MARKS.sub(lambda m: f"{m[1]}```text\n{text}\n```\n{m[2]}", page), encoding="utf-8"
        )
    for chain in chains[: args.chains]:
        print(f"\n{len(chain)} deep:", *(f"{call.file}:{call.name}" for call in chain), sep="\n  ")
    if args.files:
        print("\nfiles of which the fewest lines ran:")
        print(
            *(f"  {count:4} {file}" for file, count in lines.most_common()[: -args.files - 1 : -1]), sep="\n"
        )
    if args.list:
        print("\nfiles entered:", *sorted(lines), sep="\n  ")


if __name__ == "__main__":
    main()
