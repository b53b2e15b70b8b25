"""vLLM's place for an adapter of a request."""

from shared.offline.lora import LoRARequest as LoRARequest
