"""One role-independent engine: scheduler, runner, sampler."""
