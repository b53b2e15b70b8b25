"""Architectures from Hugging Face checkpoints."""
