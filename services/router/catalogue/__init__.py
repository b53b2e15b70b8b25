"""The models of a router: the workers of each, and what its requests need."""
