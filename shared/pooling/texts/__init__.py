"""Texts and pairs of texts as tokens, for their vectors. Knows no tensors."""
