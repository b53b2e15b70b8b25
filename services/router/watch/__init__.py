"""What is told of requests: metrics, log, traces."""
