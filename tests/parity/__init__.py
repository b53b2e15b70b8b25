"""The parity table: every configuration, by what computes it, in which precision, and where."""
