"""Processes that start at once, or do nothing."""
