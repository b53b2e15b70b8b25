"""Services with one promise broken on purpose: the matrix must notice each of them."""
