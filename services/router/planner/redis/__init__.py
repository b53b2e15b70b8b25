"""The planners' meeting place in Redis: a lease, and what lies beside it."""
