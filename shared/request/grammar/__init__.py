"""What an answer must look like, and which of that can be followed exactly."""
