"""What a run wrote, read again: its settings, metrics and sessions."""
