"""A router of several models whose workers come and go."""
