"""What a cluster does with more requests than it can serve: goodput, refusals, memory, fairness."""
