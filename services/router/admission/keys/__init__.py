"""API keys: their stores, and the tenants that they name."""
