"""vLLM's older place for the engine that a program steps."""

from shared.offline.llm_engine import LLMEngine as LLMEngine
