"""What vLLM's example programs call between two engines."""

import gc


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Free the memory of engines that the program has let go. There are no ranks to end."""
    gc.collect()
