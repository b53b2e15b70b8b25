"""Models small enough to keep in the repository, and the scripts that made them."""
