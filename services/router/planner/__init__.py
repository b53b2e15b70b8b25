"""The planner at work in a router: what it sees, who leads, what is done and shown."""
