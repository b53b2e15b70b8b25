"""Linears: several projections as one product, and the storage formats of weights."""
