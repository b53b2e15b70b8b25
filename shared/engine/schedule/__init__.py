"""Which sequences run, with which blocks."""
