"""How a worker joins the cluster, stays in it, and leaves it."""
