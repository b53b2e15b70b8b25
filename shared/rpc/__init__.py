"""gRPC: servers, channels, deadlines, status table. No business logic."""
