"""The directory: the live workers, and the blocks that each of them holds."""
