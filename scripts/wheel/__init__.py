"""Builds the distribution: the repository's packages below one package, `baton`."""
