"""Real workers in a test's process, and workers with something wrong."""
