"""Custom logits processors: the interface, loading, execution."""
