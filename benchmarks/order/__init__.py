"""The order of prompts: times to first token of short and of long ones, by scheduling policy."""
