"""What the Makefile and CI run."""
