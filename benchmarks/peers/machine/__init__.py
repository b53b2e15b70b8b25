"""What the machine is, what it could do at best, and who else uses it."""
