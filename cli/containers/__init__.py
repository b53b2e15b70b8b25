"""Commands for containers: provide a model and secrets, and probe services."""
