"""Ways to choose a worker, one per file. Each is a list of scorers and a picker."""
