"""Anthropic's Messages API: requests and answers are translated to and from a chat."""
