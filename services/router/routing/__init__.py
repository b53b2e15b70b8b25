"""Routing: the choice of workers by filters, scorers, a picker. Knows no RPC and no text."""
