"""Facts about each engine, one file per engine, of the name that `rollout.name` has for it."""
