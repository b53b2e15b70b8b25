"""Formats of calls whose arguments stand between tags."""
