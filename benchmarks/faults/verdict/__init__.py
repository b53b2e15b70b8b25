"""What a run found, against what every cell promises, and how it is shown."""
