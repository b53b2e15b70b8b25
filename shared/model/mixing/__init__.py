"""Mixers as PyTorch modules."""
