"""Endpoints for those who operate a cluster: its workers, its health, its weights."""
