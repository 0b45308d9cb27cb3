"""Freed memory stays with the process when it is asked to."""

import platform
import subprocess
import sys

import pytest

CODE = """
import sys, torch, hwbmpq
if sys.argv[1] == "keep":
    assert hwbmpq.keep_freed_memory()

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

before = resident_mib()
blocks = [torch.ones(2**21) for _ in range(25)]  # 8 MiB each
del blocks
print(resident_mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_freed_blocks_stay_with_the_process_only_if_asked() -> None:
    kept = {}
    for mode in ("keep", "default"):
        command = [sys.executable, "-c", CODE, mode]
        kept[mode] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert kept["keep"] > 190
    assert kept["default"] < 100
