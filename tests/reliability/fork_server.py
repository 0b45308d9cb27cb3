"""A process that has everything imported and forks a child for each command, so that a run starts in no time.

It reads one JSON request a line and answers each with one line. Children lead sessions of their own; whatever they
leave behind becomes a child of this process (it is a "subreaper"), so that no orphan can hide.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_GRACE = 5.0
"""Seconds that a process may take to go after the one that led it."""
_known: set[int] = set()
_ended: dict[int, int] = {}


def serve() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _import_everything()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write("ready\n")
    for line in sys.stdin:
        request = json.loads(line)
        answer = _start(request) if "output" in request else _wait(request["wait"], request["seconds"])
        answers.write(json.dumps(answer) + "\n")


def _import_everything() -> None:
    import onnxruntime  # noqa: F401
    import torch

    import hwbmpq.allocate.solve
    import hwbmpq.cli.main
    import hwbmpq.data
    import hwbmpq.export.deployment
    import hwbmpq.export.packed.load
    import hwbmpq.models
    import hwbmpq.pipeline
    import hwbmpq.report.html
    import hwbmpq.training  # noqa: F401

    torch.set_num_threads(1)  # threads do not survive a fork


def _start(request: dict[str, Any]) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        _become(request)
    _known.add(pid)
    return {"pid": pid}


def _become(request: dict[str, Any]) -> None:
    """In the child: the command, and never back."""
    code = 1
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        for number, kind in ((1, "out"), (2, "err")):
            file = os.open(f"{request['output']}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, m) for n, m in ((0, "r"), (1, "w"), (2, "w")))
        if "program" in request:
            os.execv(request["program"][0], request["program"])
        code = _typed(request)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _typed(request: dict[str, Any]) -> int:
    """The exit code of the commands; the first that is not 0 ends them unless all are wanted."""
    from hwbmpq.cli.main import main

    if request["fault"]:
        sys.path.insert(0, str(Path(__file__).parent))
        import child_faults

        child_faults.arm(**request["fault"])
    code = 0
    for words in request["commands"]:
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
        if len(request["commands"]) > 1:
            sys.stdout.flush()
            os.write(1, f"\nexit code {code}\n".encode())
    return code


def _wait(pid: int, seconds: float) -> dict[str, Any]:
    """How a child ended, and what it left running; a status of None if it has not ended by then."""
    deadline = time.monotonic() + seconds
    while pid not in _ended:
        _reap()
        if time.monotonic() > deadline:
            return {"status": None, "left": []}
        time.sleep(0.005)
    _known.discard(pid)
    deadline = time.monotonic() + _GRACE
    while (left := _strays(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
        _reap()
    for stray in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stray, signal.SIGKILL)
    return {"status": _ended.pop(pid), "left": list(left.values())}


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _ended[found[0]] = os.waitstatus_to_exitcode(found[1])


def _strays(leader: int) -> dict[int, str]:
    """Processes in the session of ``leader``, or that became ours because their parent has gone."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            is_ours = int(session) == leader or (
                int(parent) == os.getpid() and int(folder.name) not in _known
            )
            if is_ours and state != "Z":
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = f"{folder.name}: {words[:200]}"
    return found


if __name__ == "__main__":
    serve()
