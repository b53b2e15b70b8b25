"""Engines on a fake model, and what may stand beside each other in one."""
