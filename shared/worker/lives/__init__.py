"""The lives of a worker process: with an engine, or asleep."""
