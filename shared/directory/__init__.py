"""Who is alive and who holds which block."""
