"""Decode: one new token per sequence."""
