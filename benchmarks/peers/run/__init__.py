"""What is measured, in whose turn, and how often."""
