"""How fast KV blocks move between two processes, and how much of that a request notices."""
