"""Teams of other frameworks: an endpoint of the run, whose requests are acts of a session."""
