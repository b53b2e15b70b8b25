"""A request from its parameters to its job."""
