"""Toy tasks: their generators, teams and demos. The rest of the package finds them by entry points alone."""
