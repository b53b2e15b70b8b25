"""The supported architectures: how each reads its config, and what its checkpoints call tensors."""
