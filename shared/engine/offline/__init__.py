"""The parts of `LLM` beyond the engine."""
