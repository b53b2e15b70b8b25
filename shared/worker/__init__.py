"""The common parts of prefill and decode workers around the engine."""
