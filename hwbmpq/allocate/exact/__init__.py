"""Exact search: proves and improves what a solver answers, and answers many small questions fast."""
