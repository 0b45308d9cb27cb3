"""``python -m hwbmpq`` and ``torchrun -m hwbmpq`` run the command line."""

from hwbmpq.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
