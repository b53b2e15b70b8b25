"""Tenants, their limits, and the fair queue of requests."""
