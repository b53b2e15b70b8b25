"""The workers of the cluster, as a router sees them."""
