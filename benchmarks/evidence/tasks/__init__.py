"""A file per task: its arms, and the claims about them."""
