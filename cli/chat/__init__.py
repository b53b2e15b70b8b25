"""`baton chat`, and how answers are shown."""
