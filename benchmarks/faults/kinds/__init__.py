"""The faults, one family per file."""
