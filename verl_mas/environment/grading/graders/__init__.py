"""One file per grader, named after it. To add a grader, add a file."""
