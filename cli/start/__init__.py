"""What the start of a local cluster consists of."""
