"""What containers run beside the services: what makes a model and secrets ready, and probes."""
