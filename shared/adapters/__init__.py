"""LoRA adapters as PEFT writes them: read from their folder and checked against a base."""
