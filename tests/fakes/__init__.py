"""Small real things that stand in for large ones."""
