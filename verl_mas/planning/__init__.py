"""Memory, time and disk of a run, estimated from its configuration before anything starts."""
