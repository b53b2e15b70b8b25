"""Blocks on disk: one in a file, a worker's folder of them, and the tier made of it."""
