"""Several servers, several loads on each, and pictures of the results: `baton bench sweep`."""
