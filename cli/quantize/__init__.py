"""`baton quantize`: a checkpoint with linears of few bits, made of a dense one."""
