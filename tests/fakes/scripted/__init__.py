"""Parts of a cluster that say what a test tells them to."""
