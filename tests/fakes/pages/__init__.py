"""What pages of the manual say, for tests to try."""
