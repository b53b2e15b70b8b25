"""Several processes that are one router: what they share, and the process that starts them."""
