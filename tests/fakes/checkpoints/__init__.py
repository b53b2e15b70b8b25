"""Small checkpoints of every kind, written to a folder."""
