"""One file per puzzle, named after it. To add a puzzle, add a file."""
