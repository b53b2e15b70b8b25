"""The start of a local cluster."""
