"""Several new tokens per sequence: tensor cores bound the speed, so programs divide the queries."""
