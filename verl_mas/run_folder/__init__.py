"""Files of a run in `trainer.default_local_dir`, and how they are written. Importing it loads no torch or verl."""
