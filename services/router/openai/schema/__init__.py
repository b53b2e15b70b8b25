"""The fields of requests, as pydantic reads them."""
