"""From a body to what the pipeline is asked."""
