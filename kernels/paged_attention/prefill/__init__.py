"""Several new tokens per sequence: bound by the tensor cores, so divided over the queries."""
