"""The page in headless Chromium, opened from the disk as a user opens it."""

# ruff: noqa: RUF001  # programs in JavaScript, and the signs that the page writes

import io
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from view_runs import HOSTILE, act, session, write_metrics, write_run

from verl_mas.results.sessions.report import report
from verl_mas.results.sessions.run import open_run
from verl_mas.results.sessions.view import ViewOptions, note_server, write_view
from verl_mas.results.sessions.view.page import refresh

sync_api = pytest.importorskip(
    "playwright.sync_api", reason='needs Playwright: pip install ".[browser]"', exc_type=ImportError
)
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium, or its path in CHROMIUM"),
]
NAMES = [f"{word}_reviewer_of_proofs" for word in ("first", "second", "third", "fourth", "fifth")]
ACTS = [act(name) for name in NAMES]
TITLES = "[...document.querySelectorAll('#rows .row')].length"


@pytest.fixture(scope="module")
def chromium() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """Return a function that opens a page. Console messages, errors and network requests of a page fail the test."""
    wrong: list[str] = []
    context = chromium.new_context(viewport={"width": 1200, "height": 800})

    def opened(place: Path | str, expected: str = "nothing", width: int = 1200, at: str | None = None) -> sync_api.Page:
        """`at`: the fragment of the address. Without `at`, the page opens with a story, which is closed."""
        page, url = context.new_page(), place if isinstance(place, str) else place.as_uri()
        own = ("file:", "data:") if isinstance(place, Path) else url.rpartition("/")[0]
        page.set_viewport_size({"width": width, "height": 800})
        page.set_default_timeout(15_000)
        page.on("console", lambda message: expected in message.text or wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(own) or wrong.append(asked.url))
        page.goto(url if at is None else f"{url}#{at}")
        page.wait_for_selector(".transcript, #session .empty:not(#opening)")
        if at is None and page.is_visible("#story-toggle[aria-pressed=true]"):
            page.keyboard.press("s")
            until(page, "!document.querySelector('.story-step')")
        return page

    yield opened
    context.close()
    assert wrong == []


def view_of(folder: Path, records: list[dict], **options) -> Path:
    return write_view(write_metrics(write_run(folder, records)), ViewOptions(**options))[0]


def text_of(page: sync_api.Page, selector: str) -> str:
    return page.text_content(selector) or ""


def until(page: sync_api.Page, expression: str) -> None:
    """Wait until an expression is true. Playwright's function evaluates strings, which the page's policy forbids."""
    for _ in range(500):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(expression)


def test_a_session_is_a_transcript_of_its_agents(opened, tmp_path):
    acts = [
        act(branch=0, committed=False, text="Answer: 5"),
        act(branch=1, text="Answer: 4"),
        act("checker", "no verdict", malformed="no line `Verdict:`"),
    ]
    fault = {"attempt": 0, "kind": "timeout", "agent": "checker", "turn": 0, "cause": "slow", "traceback": "line 3"}
    page = opened(view_of(tmp_path, [session(acts=acts, faults=[fault])]))
    assert text_of(page, "#count") == "1 sessions"
    assert text_of(page, ".task .message .text") == "2 + 2?"
    columns = page.query_selector_all(".columns .act")
    assert [column.query_selector(".reply").text_content() for column in columns] == ["Answer: 5", "Answer: 4"]
    assert [column.query_selector(".badge.good") is not None for column in columns] == [False, True]
    assert "no line `Verdict:`" in text_of(page, ".act .reason") and "timeout" in text_of(page, ".fault")
    assert "line 3" not in text_of(page, ".fault")
    page.keyboard.press("f")
    assert "line 3" in text_of(page, ".fault") and "You are checker." in text_of(page, ".acts")
    names = page.query_selector_all(".agent, #agents .chip")
    colours = {}
    for name in names:
        colours.setdefault(name.text_content(), set()).add(name.evaluate("(one) => getComputedStyle(one).color"))
    assert {name: len(found) for name, found in colours.items()} == {"solver": 1, "checker": 1}
    assert colours["solver"] != colours["checker"]


def test_hostile_text_is_shown_as_text(opened, tmp_path):
    other = {"error": None, "reward": None, "seconds": 0}
    calls = [{"name": text, "arguments": text, "result": text, **other} for text in HOSTILE]
    records = [
        session(
            uid=text,
            number=0,
            acts=[act(agent=text, policy=text, text=text, malformed=text), act(text=text, tool_calls=calls)],
            outcome={"answer": text, "reward": 1.0, "info": {text: text}},
            faults=[{"attempt": 0, "kind": text, "agent": text, "turn": 0, "cause": text, "traceback": text}],
            task={"messages": [{"role": text, "content": text}], "ground_truth": text, "data_source": text, "index": 0},
        )
        for text in HOSTILE
    ]
    page = opened(view_of(tmp_path, records))
    title = page.title()
    for _ in HOSTILE:
        page.keyboard.press("f")
        page.wait_for_timeout(30)
        page.keyboard.press("s")
        page.keyboard.press("j")
    page.wait_for_timeout(100)
    assert page.title() == title
    assert page.query_selector("#session script, #session img, #side script, #side img") is None
    assert "\\x1b[2J" in text_of(page, "#rows") and "\x1b" not in text_of(page, "body")
    assert "\u202e" not in text_of(page, "body") and "<img src=x" in text_of(page, "#rows")


def test_the_list_has_only_the_rows_in_sight(opened, tmp_path):
    page = opened(view_of(tmp_path, [session(step, f"{step}-{n}", 0) for step in range(1, 5) for n in range(500)]))
    assert text_of(page, "#count") == "2 000 sessions" and page.evaluate(TITLES) < 60
    page.evaluate("document.getElementById('list').scrollTop = 1e9")
    page.wait_for_timeout(100)
    assert page.evaluate(TITLES) < 60 and "1-499·0" in text_of(page, "#rows")


def test_keys_move_through_sessions_and_filters_leave_those_that_match(opened, tmp_path):
    records = [session(1, f"1-{n}", k, float(k), acts=[act(text=f"lamp {n}")]) for n in range(3) for k in (0, 1)]
    page = opened(view_of(tmp_path, records))
    where = lambda: text_of(page, ".session-head h2")  # noqa: E731
    assert "task 1-0, session 0" in where()
    page.keyboard.press("j")
    until(page, "document.querySelector('.session-head h2').textContent.includes('1-0, session 1')")
    page.keyboard.press("k")
    until(page, "document.querySelector('.session-head h2').textContent.includes('1-0, session 0')")
    page.keyboard.press("/")
    page.keyboard.type('"LAMP 2')
    assert text_of(page, "#count") == "2 of 6 sessions"
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    until(page, "document.querySelector('.session-head h2').textContent.includes('1-2, session 0')")
    page.fill("#reward-from", "0.5")
    assert text_of(page, "#count") == "1 of 6 sessions"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Escape")
    assert text_of(page, "#count") == "6 sessions" and page.input_value("#search") == ""
    beside = page.get_by_role("button", name="beside each other")
    assert beside.locator("kbd").inner_text() == "g" and beside.inner_text() == "beside each other g"
    beside.press("Enter")
    page.wait_for_selector(".beside .transcript")
    assert len(page.query_selector_all(".beside .transcript")) == 2
    page.get_by_role("button", name="session 1").press("Enter")
    until(page, "document.querySelector('.session-head h2').textContent.includes('1-2, session 1')")
    assert page.evaluate("document.activeElement.id") == "session", "the next Tab is at the top of the page"


def test_a_long_reply_is_cut_until_it_is_asked_for(opened, tmp_path):
    page = opened(view_of(tmp_path, [session(acts=[act(text="a" * 10_000_000 + "the end")])]))
    assert len(text_of(page, ".reply")) < 5_000
    page.click(".reply .more")
    assert 200_000 < len(text_of(page, ".reply")) < 210_000


def test_a_token_has_its_log_prob_under_the_pointer(opened, tmp_path):
    tokens = [["Ans", -0.1], ["wer", -2.302585], ["<|im_end|>", None]]
    page = opened(view_of(tmp_path, [session(acts=[act(tokens=tokens)])]))
    assert page.get_attribute(".token:nth-child(2)", "title") == "log-prob −2.30\nprobability 10.0 %"
    assert text_of(page, ".tokens") == "Answer<|im_end|>"
    colours = page.eval_on_selector_all(".token", "(all) => all.map((one) => getComputedStyle(one).color)")
    assert len(set(colours[:2])) == 1 and colours[2] == page.eval_on_selector(
        ".of", "(one) => getComputedStyle(one).color"
    )


def test_curves_show_the_values_of_the_step_under_the_pointer(opened, tmp_path):
    page = opened(view_of(tmp_path, [session(step, f"{step}-0", acts=ACTS) for step in (1, 2, 3)]))
    box = page.query_selector(".panel svg").bounding_box()
    assert "0.75" in text_of(page, ".panel .values")
    page.mouse.move(box["x"] + 3, box["y"] + 10)
    assert "0.25" in text_of(page, ".panel .values") and text_of(page, ".panel .at") == "step 1"
    page.mouse.click(box["x"] + 3, box["y"] + 10)
    until(page, "document.querySelector('.session-head h2').textContent.includes('Step 1')")


def test_a_page_with_a_folder_loads_the_sessions_that_are_looked_at(opened, tmp_path):
    path = view_of(tmp_path, [session(step, f"{step}-0") for step in (1, 2)], inline=10)
    next(path.with_name("view_data").glob("train-000001-*")).unlink()
    page = opened(path, expected="ERR_FILE_NOT_FOUND")
    assert "Step 2" in text_of(page, ".session-head h2"), "also without what would be quoted in it"
    page.keyboard.press("j")
    page.wait_for_selector(".empty.bad")
    assert "keep it beside this page" in text_of(page, ".empty.bad")


def test_an_open_page_follows_its_run(opened, tmp_path):
    run = write_metrics(write_run(tmp_path, [session(1, "1-0")]))
    path, view = write_view(run, live=True)
    page = opened(path)
    assert text_of(page, "#count") == "1 sessions"
    write_run(run, [session(2, "2-0"), session(2, "2-1")], worker="1")
    # The page has asked for the version that it shows.
    until(page, "page.version !== null")
    assert refresh(path, view)
    until(page, "document.getElementById('count').textContent === '3 sessions'")
    assert "task 1-0" in text_of(page, ".session-head h2"), "the session that is read has changed"


# Finds texts that extend beyond the window, or beyond a box that hides its overflow.
CUT = """(selector) => [...document.querySelectorAll(selector)].filter((one) => {
  const range = document.createRange(), out = (box) => left < box.left - 1 || right > box.right + 1;
  range.selectNodeContents(one);
  const { left, right } = range.getBoundingClientRect(), hides = (box) => getComputedStyle(box).overflowX !== "visible";
  for (let box = one; box; box = box.parentElement) if (hides(box) && out(box.getBoundingClientRect())) return true;
  return left === right || left < 0 || right > innerWidth;
}).map((one) => one.textContent)"""


@pytest.fixture
def crowded(tmp_path) -> Path:
    """The page of a run with a long name and five agents with long names, whose 25 curves are equal."""
    run = write_run(tmp_path / "_".join(["sweep", *NAMES]), [session(3, f"3-{n}", acts=ACTS) for n in range(40)])
    keys = "reward/score malformed advantage/zero group/groups_uniform length/response".split()
    return write_view(write_metrics(run, 5, [f"agent/{name}/{key}" for key in keys for name in NAMES]))[0]


@pytest.mark.parametrize("width", [400, 1400])
def test_names_are_whole_numbers_are_beside_the_curves_and_equal_curves_are_all_seen(opened, crowded, width):
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, which the tests of images have")
    page = opened(crowded, width=width)
    page.evaluate("showCurves(true)")
    assert page.evaluate(CUT, "h1, .chip, .panel .title, .panel .label, .panel b, .tick, .agent") == []
    ends = "(panel, [what, side]) => [...panel.querySelectorAll(what)].map((one) => one.getBoundingClientRect()[side])"
    for panel in page.query_selector_all(".panel"):
        assert max(panel.evaluate(ends, [".curve", "right"])) <= min(panel.evaluate(ends, [".tick", "left"]))
    colours = page.eval_on_selector_all(".chip", "(all) => all.map((one) => getComputedStyle(one).color)")
    picture = image.open(io.BytesIO(page.query_selector(".panel svg").screenshot())).convert("RGB")
    seen = Counter(f"rgb{pixel}" for pixel in picture.get_flattened_data())
    assert len(set(colours)) == len(NAMES) and all(seen[colour] > 10 for colour in colours), seen.most_common(9)
    titles = page.eval_on_selector_all(".panel figcaption", "(all) => all.map((one) => [one.textContent, one.title])")
    assert len(titles) == 5 and all(about not in ("", title) for title, about in titles)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_narrow_page_begins_with_its_sessions_and_unfolds_curves_and_filters(opened, crowded):
    page = opened(crowded, width=400)
    assert not page.is_visible(".panel") and not page.is_visible("#partition") and page.is_visible("#search")
    page.get_by_role("button", name="Curves").press("Enter")
    page.click("#more-filters summary")
    assert page.is_visible(".panel") and page.is_visible("#partition")
    assert page.query_selector("#session").bounding_box()["height"] > 150
    page.click("#more-filters summary")
    page.set_viewport_size({"width": 1400, "height": 800})
    until(page, "document.querySelector('#partition').checkVisibility()")


TASK = session()["task"]


def told(folder: Path, word: str = "lamp") -> Path:
    """A run that validates on two tasks at steps 0 to 9."""
    records = []
    for step in range(10):
        for task in (0, 1):
            acts = [act(text=f"It is a {word} <b>{step}</b>"), act("checker", "?" * 400, malformed="no verdict")]
            own = {"acts": acts, "task": TASK | {"index": task}, "partition": "val"}
            records.append(session(step, f"val{step}-{task}", reward=step / 9, **own))
    return write_metrics(write_run(folder, records), 9)


def texts_of(page: sync_api.Page, selector: str) -> list[str]:
    return page.eval_on_selector_all(selector, "(all) => all.map((one) => one.textContent)")


def fit(page: sync_api.Page) -> bool:
    """Whether the page needs no horizontal scrolling at the width of a phone, and then of a laptop."""
    sizes = "[document.documentElement, document.getElementById('session')].map((one) => one.scrollWidth)"
    widest = []
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        widest.append(max(page.evaluate(sizes)) - width)
    return max(widest) <= 0


def test_the_page_opens_with_one_task_at_four_steps_and_its_address_opens_it_again(opened, tmp_path):
    page = opened(write_view(told(tmp_path))[0], width=400, at="")
    assert text_of(page, ".story-head h2") == "One task at steps 0, 3, 6 and 9" and not page.is_visible("#list")
    assert texts_of(page, ".story-step .big-reward b") == ["0.00", "0.33", "0.67", "1.00"]
    replies = texts_of(page, ".story-step .act:first-child .reply")
    assert replies == [f"It is a lamp <b>{step}</b>" for step in (0, 3, 6, 9)]
    assert "before training" in text_of(page, ".story-step h2") and "no verdict" in text_of(page, ".story-step .reason")
    assert fit(page) and page.is_visible("#list")
    page.keyboard.press("l")
    until(page, "location.hash === '#story%2Fval%2F9%2Fval9-1%2F0'")
    again = opened(tmp_path / "view.html", at="story/val/9/val9-1/0")
    assert text_of(again, ".story-head h2") == "One task at steps 0, 3, 6 and 9"
    again.get_by_role("button", name="step 3").click()
    until(again, "document.querySelector('.session-head h2').textContent.includes('task val3-1')")
    assert again.get_by_role("link", name="link").get_attribute("href") == "#val%2F3%2Fval3-1%2F0"


def test_the_page_reports_the_address_of_a_missing_session_and_a_task_of_one_step(opened, tmp_path):
    page = opened(view_of(tmp_path, [session(3, "3-0")]), at="train/77/77-0/0")
    assert "names the session train/77/77-0/0, which this page does not have" in text_of(page, "#session .empty")
    page.evaluate("location.hash = '#story/train/3/3-0/0'")
    page.wait_for_selector(".story-head")
    assert text_of(page, "h2") == "One task at step 3" and "No other step has a session" in text_of(page, ".story-head")


def test_what_two_runs_wrote_for_a_task_is_beside_each_other_with_marks_where_it_differs(opened, tmp_path):
    runs = told(tmp_path / "one"), told(tmp_path / "two", "small lamp")
    page = opened(write_view(runs)[0], width=400, at="")
    assert page.text_content("h1") == "A one, B two"
    assert texts_of(page, ".story-step mark") == ["small "] * 4, "and none in what both wrote"
    places = "(all) => all.slice(0, 2).map((one) => one.getBoundingClientRect().x)"
    left, right = page.eval_on_selector_all(".story-step .transcript", places)
    assert left == right and fit(page)
    left, right = page.eval_on_selector_all(".story-step .transcript", places)
    assert left < right
    page.get_by_role("button", name="run B, step 9").click()
    until(page, "location.hash === '#B%2Fval%2F9%2Fval9-0%2F0'")
    assert "Run B, step 9" in text_of(page, ".session-head h2")


def test_a_report_is_one_page_with_findings_curves_and_four_sessions_in_a_notebook_as_well(opened, tmp_path):
    found, file = report(open_run(told(tmp_path / "run"))), tmp_path / "report.html"
    file.write_text(found.html())
    page = opened(file, width=400, at="")
    assert text_of(page, "#report .findings").startswith("findings: none") and page.is_visible(".panel svg")
    assert page.evaluate("page.run.count") == 4 == len(page.query_selector_all(".story-step"))
    assert fit(page) and not page.is_visible("#side")
    file.write_text(found._repr_html_())
    page.goto(file.as_uri())
    page.frames[1].wait_for_selector(".story-step")


def test_a_note_is_kept_beside_the_run_and_a_page_without_a_server_shows_it(opened, tmp_path):
    run = told(tmp_path)
    out, view = write_view(run, ViewOptions(notes=True), live=True)
    listens = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listens.getsockname()[1]}/{note_server(out, view).start(listens)}"
    page = opened(address, at="val/9/val9-0/0")
    page.fill("textarea", "Look: <img src=x onerror=1>\u202e")
    page.keyboard.press("Escape")
    until(page, "document.querySelector('.note output').textContent === 'kept'")
    assert text_of(page, ".row.chosen .badge") == "note"
    page.click("[data-toggle=noted]")
    assert text_of(page, "#count") == "1 of 20 sessions"
    page = opened(write_view(run)[0], at="val/9/val9-0/0")
    assert text_of(page, ".note .text") == "Look: <img src=x onerror=1>\\u202e" and not page.query_selector("textarea")
