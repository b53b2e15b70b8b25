"""Transport security: certificates, the identities in them, and what each role may call."""
