"""Writers of quantised matrices: by the format's own library, or plainly from its description."""
