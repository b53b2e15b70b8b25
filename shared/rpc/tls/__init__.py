"""Transport security: certificates, who their holders are, and what these may call."""
