"""Between processes of one host: packets of a Unix socket, and memory that both map."""
