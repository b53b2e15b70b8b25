"""Those who ask the cluster, and the right answers."""
