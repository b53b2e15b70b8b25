"""PyTorch's files: a zip archive of a pickle and of plain numbers. Without torch."""
