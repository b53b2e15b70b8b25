"""Baton beside its peers on this machine: same models, same prompts, alternating."""
