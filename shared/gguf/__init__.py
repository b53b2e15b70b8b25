"""Models in one file of llama.cpp's format: what such a file says, in Hugging Face's terms."""
