"""Runs over several seeds that test claims about the training of teams.

The claims are about how much teams learn, how an advantage estimator changes this, and what each role has learned.
"""
