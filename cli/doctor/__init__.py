"""`baton doctor`: checks that find the cause of a failure, with advice."""
