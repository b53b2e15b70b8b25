"""The parts into which sequences are divided, as kernels find and merge them."""
