"""Models run by hand, and what their definitions say that they compute."""
