"""What stands on command lines."""
