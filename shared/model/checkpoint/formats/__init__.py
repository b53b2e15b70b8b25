"""Checkpoints of few bits per number: what each format stores, and the matrices made of it."""
