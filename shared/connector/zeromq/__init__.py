"""Transfers over TCP, unencrypted or encrypted, and over Unix sockets."""
