"""Scheduling: which sequences run, and their blocks."""
