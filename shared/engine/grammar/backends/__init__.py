"""The grammar libraries, and conversions of grammars for each."""
