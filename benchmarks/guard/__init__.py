"""Guards host overhead in CI: counts instructions, never time, and compares with the merge base."""
