"""Gates at which a sequence waits: for its adapter, for steps in flight, for its grammar's mask."""
