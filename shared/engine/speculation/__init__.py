"""Tokens are guessed, and the model checks several guesses in one step."""
