"""What the configs of checkpoints of few bits per number say: a file for each format."""
