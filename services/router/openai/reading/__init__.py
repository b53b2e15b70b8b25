"""Conversion of request bodies to requests for the pipeline."""
