"""TLS: certificates, the identities in them, and the calls that each role may make."""
