"""Names, meanings and findings of what a run logs."""
