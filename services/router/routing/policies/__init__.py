"""Ways to choose a worker, one per file, of the scorers and pickers in two files beside them."""
