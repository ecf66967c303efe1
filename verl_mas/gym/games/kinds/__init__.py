"""One game per file, under the name with which it is registered."""
