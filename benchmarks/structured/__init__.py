"""What structured output costs, and whether what comes is valid."""
