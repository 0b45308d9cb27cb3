"""Programs that call themselves glpsol and fail."""

import os
from pathlib import Path

_HEAD = """#!/bin/bash
case $1 in --version|-v) echo 'GLPSOL--GLPK LP/MIP Solver 5.0'; exit 0;; esac
"""
WAYS = {
    "crash": "kill -SEGV $$",
    "refuse": "exit 3",
    "say nothing": "exit 0",
    "talk nonsense": """
while [ $# -gt 0 ]; do
    case $1 in --write|--output) head -c 300 /dev/urandom > "$2";; esac
    shift
done""",
    "hang": "exec sleep 1000",
    "hang and ignore signals": "trap '' TERM INT; while true; do :; done",
}


def false_glpsol(folder: Path, way: str) -> str:
    """A PATH on which it comes first."""
    place = folder / "bin"
    place.mkdir()
    (place / "glpsol").write_text(f"{_HEAD}{WAYS[way]}\n")
    (place / "glpsol").chmod(0o755)
    return f"{place}:{os.environ['PATH']}"
