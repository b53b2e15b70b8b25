"""`baton plan`: how to divide workers, and what more of them buy."""
