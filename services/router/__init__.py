"""The router: turns text into tokens, admits and routes requests, streams answers."""
