"""Toy tasks: what generates them, their teams, and demos. The rest of the package finds them by entry points alone."""
