"""An answer from its pieces, by as many workers as it takes."""
