"""Endpoints that generate text, and the steps that they share."""
