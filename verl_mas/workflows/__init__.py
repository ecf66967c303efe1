"""Teams that we ship, one file per team."""
