"""Hardware-aware mixed-precision quantization for PyTorch.

hwbmpq trains a network once, quantized, learns from bit gradients how sensitive each layer is,
and gives every layer the bit width that your device's budget allows.

examples:
  hwbmpq compress --model timm:resnet18 --target jetson_nano.yaml
  hwbmpq report runs/resnet18-jetson_nano --html report.html
  hwbmpq evaluate runs/resnet18-jetson_nano
  hwbmpq export runs/resnet18-jetson_nano
  hwbmpq benchmark runs/resnet18-jetson_nano
  hwbmpq inspect --model timm:resnet18
  hwbmpq inspect --model file:net.py:make_net --input 3x96x96 --json
  hwbmpq targets list
  hwbmpq targets show jetson_nano --model timm:resnet18
  hwbmpq plan --model hwbmpq:resnet20 --target mpic --budget memory=12x
  hwbmpq frontier --model hwbmpq:resnet20 --target mpic --target gap9_ne16 --cost latency

'hwbmpq COMMAND --help' explains each command.
"""

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import hwbmpq
from hwbmpq.cli.console import Console, escape_lines, print_traceback
from hwbmpq.cli.options.common import add_command
from hwbmpq.cli.options.parser import HelpFormatter, Parser
from hwbmpq.cli.render.tables import print_wrapped
from hwbmpq.errors import HwbmpqError, OtherRankError, RunStoppedError

USER_ERROR = 2
INTERRUPTED = 130
_COMMANDS = "compress report evaluate export benchmark inspect targets costs plan frontier".split()


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; if one of them is ``chosen``, the others get their one line of help only."""
    parser = Parser(prog="hwbmpq", formatter_class=HelpFormatter)
    parser.description, examples, more = str(__doc__).partition("examples:\n")
    parser.epilog = examples + more
    parser.add_argument("--version", action="version", version=f"hwbmpq {hwbmpq.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        command = import_module(f"hwbmpq.cli.commands.{name}")
        added = add_command(commands, name, command)
        if chosen in (None, name):
            command.add_options(added)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Errors of the input are one sentence on stderr and code 2."""
    _reserve_stdout()
    sys.excepthook = print_traceback
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × shows ? instead of a traceback
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(next((word for word in words if not word.startswith("-")), ""))
    try:
        args = parser.parse_args(words)
        args.run(args)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except OtherRankError:
        return USER_ERROR
    except RunStoppedError as error:
        _report(error, "stopped")
        return INTERRUPTED
    except HwbmpqError as error:
        if "--debug" in words:
            raise
        _report(error)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()  # the reader (head, less) has gone
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _silence_stdout()
        _report(HwbmpqError(f"cannot write the output: {error.strerror}"))
        return USER_ERROR
    return 0


def _reserve_stdout() -> None:
    """Keep stdout for results: what libraries print from C, as HiGHS sometimes does unasked, goes to stderr."""
    if sys.stdout is not sys.__stdout__ or sys.stdout is None:
        return  # somebody has replaced it
    with suppress(OSError, ValueError):  # one of the two is closed
        results = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        sys.stdout = open(results, "w", encoding=sys.stdout.encoding, buffering=-1, errors="replace")  # noqa: SIM115


def _silence_stdout() -> None:
    """Python flushes stdout once more at exit: let it go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: HwbmpqError, what: str = "error") -> None:
    console = Console(stderr=True, highlight=False)
    message = str(error)
    separator = "\n" if "\n" in message else " "  # a list of places starts on a line of its own
    print_wrapped(console, f"[bold red]{what}:[/]{separator}{escape_lines(message)}")
    if error.hint:
        print_wrapped(console, f"[bold]try:[/] {escape_lines(error.hint)}")
