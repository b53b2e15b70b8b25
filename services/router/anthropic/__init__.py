"""Anthropic's Messages API, beside OpenAI's: the same pipeline, other words."""
