"""A model on disk: its config, its files, their headers and hashes, and its weights."""
