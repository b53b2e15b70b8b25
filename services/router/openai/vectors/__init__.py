"""The endpoints of vectors: OpenAI's, and what vLLM, Jina and Cohere have beside it."""
