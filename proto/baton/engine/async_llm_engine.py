"""vLLM's older place for the engine with a loop of its own."""

from shared.offline.async_llm import AsyncLLM as AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
