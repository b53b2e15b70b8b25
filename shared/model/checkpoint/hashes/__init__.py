"""Hashes of a checkpoint's files, and the name of a model that is made of them."""
