"""The processes of a group: rank 0 leads, the others follow its plans."""
