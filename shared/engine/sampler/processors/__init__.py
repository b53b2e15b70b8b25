"""Custom logits processors: the interface, how they are found, and how they are run."""
