"""Adapters of a model's linears: their weights in memory, and the rows that pass through them."""
