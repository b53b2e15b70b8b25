"""Observers of requests: metrics, log, traces."""
