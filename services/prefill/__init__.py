"""The prefill worker: computes KV blocks and pushes them to decode workers."""
