"""A file per puzzle, of the same name; adding one is adding a file."""
