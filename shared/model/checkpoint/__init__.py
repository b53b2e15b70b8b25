"""A model as it lies on disk: its config, its tensors by name, what it hashes to."""
