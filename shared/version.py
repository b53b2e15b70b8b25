"""The version of the software, as `/version` and workers report it."""

VERSION = "0.1.0"
