"""Measures kernels, engine and hand-off on a GPU, as shares of what the same run reached."""
