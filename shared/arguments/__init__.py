"""vLLM's engine arguments: what each of them means here."""
