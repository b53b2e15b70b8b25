"""A router with some of its parts, in a test's process."""
