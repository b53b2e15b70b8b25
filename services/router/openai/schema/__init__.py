"""The fields of requests, as pydantic models."""
