"""Settings of an engine, named like vLLM's: of steps, model, ranks and drafts."""
