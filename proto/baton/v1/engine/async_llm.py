"""vLLM's place for the engine with a loop of its own."""

from shared.offline.async_llm import AsyncLLM as AsyncLLM
