"""The live page of the cluster at /dashboard: what this router sees of it, once a second."""
