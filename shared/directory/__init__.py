"""Which workers are alive, and which blocks each of them holds."""
