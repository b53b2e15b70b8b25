"""Models from Hugging Face checkpoints."""
