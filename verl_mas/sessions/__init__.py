"""Settings, metrics and sessions of a run, read for the report and the viewer."""
