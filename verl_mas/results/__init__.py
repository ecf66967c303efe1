"""Results of a run: its sessions, and its trained policies.

- `sessions/`: settings, metrics and sessions of a run, read for the report and the viewer.
- `formats/`: sessions in the formats of other tools.
- `serve/`: export of a trained team, which can then be loaded, served and evaluated.
"""
