"""What other people's clients read, and where they are."""
