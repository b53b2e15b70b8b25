"""Harmony, the format of gpt-oss' prompts, as OpenAI has published it."""
