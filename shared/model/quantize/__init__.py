"""Writing of checkpoints whose linears are stored in few bits."""
