"""Heads that guess tokens from a target's hidden states, in the formats they are published in."""
