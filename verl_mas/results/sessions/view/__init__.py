"""Sessions as one HTML file that needs no network: `write_view`.

page.py       writes the page and its folder of data, which has the sessions in chunks that the page loads on demand;
              refuses wrong arguments; writes the data again while a run trains
index.py      the sessions of a run by step; the columns behind the list and its filters; the searched text; the curves
notes.py      notes on sessions, and the server that saves them
*.js, *.css, page.html.j2    the page; the scripts are joined in the order of `page.SCRIPTS`
"""

from verl_mas.results.sessions.view.page import ViewOptions, follow, note_server, write_view

__all__ = ["ViewOptions", "follow", "note_server", "write_view"]
