"""The Llama family on the native kernels: packed weights, one call per step."""
