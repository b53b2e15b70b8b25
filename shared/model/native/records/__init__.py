"""What a model has, as records of the native library."""
