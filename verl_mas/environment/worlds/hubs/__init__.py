"""One hub per file, under the name with which it is registered."""
