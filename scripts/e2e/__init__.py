"""What the end-to-end programs consist of."""
