"""Graders of answers, and the forms in which answers are written."""
