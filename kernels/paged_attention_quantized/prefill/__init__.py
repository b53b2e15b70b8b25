"""Prefill: several new tokens per sequence."""
