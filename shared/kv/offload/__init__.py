"""Which KV blocks a lower tier keeps. Pure bookkeeping: no bytes, no torch, no I/O."""
