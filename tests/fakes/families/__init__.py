"""Small random models of transformers, by topic: model types and settings."""
