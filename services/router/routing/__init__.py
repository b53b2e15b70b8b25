"""Which workers serve a request: filters, scorers, a picker. Knows no RPC and no text."""
