"""Files of a run in `trainer.default_local_dir`, and functions that write them. Importing this package loads neither
torch nor verl."""
