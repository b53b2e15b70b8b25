"""The supported architectures: each one's config and tensor names."""
