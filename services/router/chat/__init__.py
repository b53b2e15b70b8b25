"""Conversations: their prompts, their tools, and whole answers."""
