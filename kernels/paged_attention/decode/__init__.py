"""One new token per sequence: memory bounds the speed, so programs divide the keys."""
