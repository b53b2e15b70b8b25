"""What a worker knows of other workers, and the wire between them."""
