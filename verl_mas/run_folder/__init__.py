"""Files of a run in `trainer.default_local_dir`, and how they are written. Importing this loads neither torch nor
verl."""
