"""Certificates, keys, and the doors that they open."""
