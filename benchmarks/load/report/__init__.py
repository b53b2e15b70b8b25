"""How a run is shown and kept."""
