"""A request over HTTP: its body, its id, its trace, and its client's disconnect."""
