"""The planner before simulated clusters, beside the best fixed counts."""
