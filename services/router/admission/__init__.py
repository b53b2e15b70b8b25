"""Whose turn it is: tenants, their limits, the fair queue."""
