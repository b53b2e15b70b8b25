"""Hand-offs between workers of several ranks: many transfers that are one."""
