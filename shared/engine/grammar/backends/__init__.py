"""The libraries that follow grammars, and what each must be told in another way."""
