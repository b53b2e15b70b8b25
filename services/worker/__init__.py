"""The worker program: its settings, and the wiring of its services."""
