"""Results of a run: its sessions, and its trained policies.

- `sessions/`: settings, metrics and sessions of a run, read for the report and the viewer.
- `formats/`: sessions in the formats of other tools.
- `serve/`: export of a team's policies, which can then chat, be served and be evaluated.
"""
