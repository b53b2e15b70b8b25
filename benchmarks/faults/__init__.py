"""The fault matrix: every fault at every moment of a request, on real processes."""
