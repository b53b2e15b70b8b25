"""POST /v1/responses, OpenAI's newer API: text and functions."""
