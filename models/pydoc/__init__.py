"""The pydoc model: a tiny Llama that answers questions about Python's standard library.

Only scripts and weights; nothing that serves imports it.
"""
