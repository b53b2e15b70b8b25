"""A request's parameters, limits and conversion for the workers."""
