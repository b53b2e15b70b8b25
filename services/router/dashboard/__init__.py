"""The live page of the cluster at /dashboard: this router's view, once a second."""
