"""An engine in a thread of its own: commands to it, and events from it."""
