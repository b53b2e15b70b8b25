"""The other ranks of an engine: plans and results as bytes, and the results of the last stage."""
