"""A worker's knowledge of other workers, and the wire format between them."""
