"""``python -m hwbmpq.cli`` runs the command line."""

from hwbmpq.cli.main import main

raise SystemExit(main())
