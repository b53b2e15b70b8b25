"""The servers beside each other: what clients see while prompts and answers compete."""
