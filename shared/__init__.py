"""Libraries that the services are made of."""

__version__ = "0.1.0"
