"""Libraries that the services are made of."""
