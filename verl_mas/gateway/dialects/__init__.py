"""The HTTP protocols of programs, with one file per protocol."""
