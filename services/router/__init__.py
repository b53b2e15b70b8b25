"""The front door: text to tokens, admission, routing, streaming."""
