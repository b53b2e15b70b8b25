"""A model on disk: its config, its tensors by name, its hash."""
