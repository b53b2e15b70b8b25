"""Families with layers that keep a state."""
