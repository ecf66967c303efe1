"""A file per executor, of the same name; adding one is adding a file."""
