"""Files that PyTorch wrote, read without running their pickles."""
