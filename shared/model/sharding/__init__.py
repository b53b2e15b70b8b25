"""A rank's part of a decoder: what it computes, and what of each stored tensor it reads."""
