"""Routing policies on simulated workers, and what one decision costs the router."""
