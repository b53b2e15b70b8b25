"""How long a large checkpoint takes to load, and how much memory meanwhile."""
