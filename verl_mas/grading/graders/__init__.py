"""A file per grader, of the same name; adding one is adding a file."""
