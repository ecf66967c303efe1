"""What a run keeps in `trainer.default_local_dir`, and how it is written. Importing it loads neither torch nor verl."""
