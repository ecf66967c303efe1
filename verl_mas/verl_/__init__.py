"""The contract with verl: every private name that we rely on, and its types."""
