"""Keeping freed memory: fewer page faults when the same block is asked for again."""

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, sys, torch, hwbmpq
if sys.argv[1] == "keep":
    assert hwbmpq.keep_freed_memory()
keep_busy = [torch.ones(2**21) for _ in range(4)]
del keep_busy
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    blocks = [torch.ones(2**21) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_kept_memory_is_not_faulted_in_again() -> None:
    faults = {
        mode: int(
            subprocess.run(
                [sys.executable, "-c", CODE, mode], capture_output=True, text=True, check=True
            ).stdout
        )
        for mode in ("keep", "default")
    }
    assert faults["keep"] < 1000 < faults["default"]
