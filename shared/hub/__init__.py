"""Models that are named as on Hugging Face's hub."""
