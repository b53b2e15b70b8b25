"""One engine per process. They run in the peers' own environments: standard library only."""
