"""One new token per sequence: bound by the memory, so divided over the keys."""
