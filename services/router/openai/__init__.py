"""The OpenAI API over HTTP. Knows the Generator, a tokenizer and a chat template; no workers."""
