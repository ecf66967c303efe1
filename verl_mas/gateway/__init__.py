"""Teams of other frameworks. They send requests to an endpoint of the run, and each request is an act of a session."""
