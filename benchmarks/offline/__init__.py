"""An engine in this process, measured without a server: what `vllm bench` does offline."""
