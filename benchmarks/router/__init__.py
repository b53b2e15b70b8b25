"""What the router adds: mock decode workers behind it, raw sockets in front, real processes all."""
