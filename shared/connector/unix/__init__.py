"""Transfers between processes of one host: Unix sockets and shared memory."""
