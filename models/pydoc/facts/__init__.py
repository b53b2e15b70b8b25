"""What the model is taught: every fact, and the ways to ask for it."""
