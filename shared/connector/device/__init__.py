"""Transfers from and to the memory of an accelerator."""
