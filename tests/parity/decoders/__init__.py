"""Every causal model type of the installed transformers: what computes it, or why nothing does."""
