"""The C++ decoder for CPUs: compiled at first use, cached, called through ctypes."""
