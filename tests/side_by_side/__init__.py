"""The same requests to vLLM and to Baton: statuses, shapes, words of errors, greedy texts."""
