"""The workers as a router knows them."""
