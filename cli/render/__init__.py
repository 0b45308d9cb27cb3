"""Values drawn for a terminal."""
