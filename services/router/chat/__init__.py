"""Conversations: their prompts, tools, and what is read from answers."""
