"""The files of a checkpoint: which there are, and the tensors in them."""
