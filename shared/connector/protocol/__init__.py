"""The common protocol of all connectors: frames, credits, checksums, both ends of a transfer."""
