"""Packing of bfloat16 KV on its way: whether it pays on a link."""
