"""Vectors of texts: from a prompt's hidden states to an embedding, or to scores."""
