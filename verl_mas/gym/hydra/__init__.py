"""The teams of the toy tasks, on Hydra's search path."""
