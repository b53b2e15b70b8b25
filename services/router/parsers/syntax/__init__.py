"""The machine under all parsers, and the syntaxes that families share."""
