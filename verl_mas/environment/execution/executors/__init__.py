"""One file per executor, named after it. To add an executor, add a file."""
