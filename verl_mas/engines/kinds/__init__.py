"""Facts about each engine: one file per engine, named as in `rollout.name`."""
