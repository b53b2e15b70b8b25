"""Decoders that Baton does not describe itself, computed by transformers' modules."""
