"""The team's trainer. Importing this package loads neither torch nor verl."""
