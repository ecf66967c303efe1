"""What is true of any run of verl, with or without a team. `tests/test_structure.py` says what is imported here."""
