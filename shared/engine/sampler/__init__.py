"""Sampling. Stateless: a token depends on its logits, parameters and position only."""
