"""Speculation: a proposer drafts tokens, and the model checks several of them in one step."""
