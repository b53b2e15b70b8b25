"""A server, and the requests that it is sent."""
