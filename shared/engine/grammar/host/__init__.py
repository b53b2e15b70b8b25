"""Processes that compile and follow grammars, separate from the worker's process."""
