"""From and to the memory of an accelerator."""
