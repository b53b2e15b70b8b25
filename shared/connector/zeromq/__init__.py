"""Over TCP, in the clear or encrypted, and over Unix sockets."""
