"""The decoder in C++ for CPUs: compiled at first use, cached, called through ctypes."""
