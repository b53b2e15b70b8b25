"""What all connectors have in common: frames, credits, checksums, both ends of a transfer."""
