"""The ends by which the ranks of a group speak: memory, sockets, and those of devices."""
