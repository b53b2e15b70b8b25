"""Linears: several projections as one product, and the methods by which their weights are kept."""
