"""Where a prompt is computed: at the worker that writes the answer, or at another one."""
