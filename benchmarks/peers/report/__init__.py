"""Results as tables, plots and a page."""
