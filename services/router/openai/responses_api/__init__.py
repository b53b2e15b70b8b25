"""POST /v1/responses: OpenAI's newer API, for text and functions, without stored state."""
