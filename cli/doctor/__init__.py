"""`baton doctor`: checks that find out why something does not work, and what to do."""
