"""Redis servers, and what stands beside one."""
