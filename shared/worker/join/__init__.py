"""Membership of a worker: joining, staying and leaving."""
