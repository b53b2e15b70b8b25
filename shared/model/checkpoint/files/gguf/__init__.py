"""Reading of GGUF files as a checkpoint: tensors, and matrices that stay codes."""
