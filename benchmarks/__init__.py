"""Measurements. Nothing that serves requests imports from here."""
