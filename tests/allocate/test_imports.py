"""What importing the allocator brings along."""

import subprocess
import sys


def test_the_allocator_needs_numbers_only() -> None:
    code = "import sys, hwbmpq.allocate; print({'torch', 'hwbmpq.graph', 'hwbmpq.cli'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_importing_the_allocator_reads_no_yaml() -> None:
    code = "import sys, hwbmpq.allocate; print('yaml' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
