"""Who may come in, and how: HTTP, keys, limits on connections."""
