"""The folder that a model is read from: as it is named, or changed by settings."""
