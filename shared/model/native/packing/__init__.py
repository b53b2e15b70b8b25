"""A model's weights in the native kernels' order."""
