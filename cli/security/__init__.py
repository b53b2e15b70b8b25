"""Access to a cluster: certificates, its own token, and API keys of its tenants."""
