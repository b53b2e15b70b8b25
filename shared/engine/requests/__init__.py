"""Requests that come to an engine: those that it refuses, and those with adapters."""
