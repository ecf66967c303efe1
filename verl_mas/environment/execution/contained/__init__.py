"""The default executor: a fork server that starts a process per program. Programs can open no file or socket."""
