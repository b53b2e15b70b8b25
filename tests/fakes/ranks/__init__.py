"""Ranks as threads, processes and hosts, and what they hold."""
