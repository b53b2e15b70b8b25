"""Elastic placement beside both fixed shapes, at every load: real workers, and simulated ones."""
