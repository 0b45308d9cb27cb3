"""One module per command, each with HELP, DESCRIPTION, EPILOG, ``add_options`` and ``run``."""
