"""The team's trainer: the step, credit, validation, checkpoints, lost processes.

Importing this package loads neither torch nor verl.
"""
