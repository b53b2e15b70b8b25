"""The load generator: arrivals, prompts, an OpenAI client, measures, and how they are shown."""
