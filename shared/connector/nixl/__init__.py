"""Over NIXL: the sender writes into the receiver's registered memory."""
