"""Prefill/decode on separate processes against the in-process engine, side by side."""
