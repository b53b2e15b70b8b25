"""How tokens look at each other."""
