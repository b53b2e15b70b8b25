"""Connectors whose blocks another process has: acts go by a control connection, bytes do not."""
