"""Stored responses: the store, conversations that go on, and responses in the background."""
