"""Systems in one process each, started and stopped."""
