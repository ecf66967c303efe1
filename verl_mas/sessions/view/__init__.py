"""Sessions as one HTML file that needs no network: `write_view`.

page.py       the file, its folder of data, and what is refused
source.py     the sessions of a run by step, and which steps changed
index.py      one line of numbers per session, for the list and its filters, and the text that is searched
bodies.py     whole sessions in pieces that the page loads when it needs them
curves.py     the numbers of the run by step
payload.py    how data is embedded: as base64, so no text of a model is markup or script
live.py       writes the data again while a run trains
*.js, *.css, page.html.j2    the page; the scripts are joined in the order of `page.SCRIPTS`
"""

from verl_mas.sessions.view.live import follow
from verl_mas.sessions.view.page import ViewOptions, write_view

__all__ = ["ViewOptions", "follow", "write_view"]
