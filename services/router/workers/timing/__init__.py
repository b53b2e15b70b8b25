"""What a worker takes: its speed, learned from answers, and the time until its work is done."""
