"""Families whose layers choose among experts."""
