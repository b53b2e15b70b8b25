"""Matrices of few bits per number in memory, and how the inputs that meet them are rounded."""
