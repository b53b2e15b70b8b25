"""LoRA adapters: those that are known, those in host memory, and those in a model's slots."""
