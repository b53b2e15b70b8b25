"""The processes of a Baton cluster."""
