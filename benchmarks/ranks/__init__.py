"""How fast ranks add up, and how fast plans reach followers."""
