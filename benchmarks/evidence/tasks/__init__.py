"""One module per task, with the arms of the task and the claims about them."""
