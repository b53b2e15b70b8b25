"""The directory in Redis. README.md of this folder has the keys, their sizes and the scripts."""
