"""Vectors of texts: from texts to tokens, to prefill workers, and to scores."""
