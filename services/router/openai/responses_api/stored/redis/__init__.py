"""Responses in Redis, for all routers of a cluster. README.md has the layout."""
