"""From what models write to what they mean: tool calls and reasoning, one module per format."""
