"""Draft heads on a target's hidden states, in their published formats."""
