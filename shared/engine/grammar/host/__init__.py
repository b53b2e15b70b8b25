"""Processes that compile grammars and follow them, apart from the process that serves."""
