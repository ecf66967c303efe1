"""Running programs that a model wrote."""
