"""One module per command, each with ``add_parser`` and ``run``."""
