"""Tokenizers, chat templates and answers as families of models write them."""
