"""verl puts its own function here, which is not called."""
