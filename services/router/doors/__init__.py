"""Access over HTTP: the application, keys, limits on connections."""
