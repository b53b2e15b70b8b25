"""Transfers over NIXL: the sender writes into the receiver's registered memory."""
