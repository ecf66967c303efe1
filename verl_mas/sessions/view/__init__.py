"""Sessions as one HTML file that needs no network: `write_view`.

page.py       the file, its folder of data with whole sessions in pieces that the page loads when it needs them, what is
              refused, and writing the data again while a run trains
index.py      the sessions of a run by step; per session one line of numbers, for the list and its filters; the text
              that is searched, and curves
notes.py      notes on sessions beside the run, and the server that keeps them
*.js, *.css, page.html.j2    the page; the scripts are joined in the order of `page.SCRIPTS`
"""

from verl_mas.sessions.view.page import ViewOptions, follow, note_server, write_view

__all__ = ["ViewOptions", "follow", "note_server", "write_view"]
