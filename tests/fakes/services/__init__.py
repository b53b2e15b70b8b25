"""Processes that behave like the services as far as those who start and ask them can see."""
