"""What verl-mas knows of each engine, a file per engine under the name that `rollout.name` has for it."""
