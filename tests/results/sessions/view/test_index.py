"""Entries of sessions for the list and the search."""

from view_runs import act, session

from verl_mas.results.sessions.view.index import Page, StepPart, cut_to, groups_of, index_of, story_of


def page(*records: dict, step: int = 1, chunks: tuple[tuple[str, int], ...] = ()) -> Page:
    return Page(StepPart("train", step, ()), groups_of(records), chunks or (("chunk", len(records)),))


def test_a_group_has_the_sessions_of_one_attempt_and_is_uniform_if_the_reader_says_so():
    records = [session(number=n, attempt=attempt, uniform=attempt == "a" or None) for attempt in "ab" for n in (0, 1)]
    assert [(len(group.entries), group.uniform) for group in groups_of(records)] == [(2, True), (2, False)]


def test_agents_are_in_the_order_of_the_configuration_and_others_in_the_order_of_their_acts():
    assert index_of([page(session())], {}, ["idle", "checker"])["agents"] == ["idle", "checker", "solver"]
    acts = [act("solver"), act("checker", malformed="no verdict")]
    index = index_of([page(session(acts=acts), session(number=1, acts=acts[::-1]))], {})
    assert index["agents"] == ["solver", "checker"] and index["columns"]["malformed"] == [["checker"]] * 2


def test_a_session_is_found_by_the_number_of_its_chunk_among_all_and_its_place_in_it():
    sessions = [session(number=number) for number in range(3)]
    first, second = page(*sessions, chunks=(("a", 1), ("b", 2))), page(*sessions, step=2, chunks=(("c", 2), ("d", 1)))
    index = index_of([first, second], {})
    assert index["chunks"] == ["a", "b", "c", "d"]
    assert index["columns"]["chunk"] == [0, 1, 1, 2, 2, 3] and index["columns"]["place"] == [0, 0, 1, 0, 1, 0]


def test_a_task_is_known_again_at_another_step_and_not_in_another_split_or_place_of_the_data():
    moved = session(task=session()["task"] | {"index": 1})
    records = [session(), session(2, "2-0"), session(2, "val2-0", partition="val"), moved]
    assert index_of([page(record) for record in records], {})["groups"]["task"] == [0, 0, 1, 2]


def test_the_page_opens_with_a_typical_task_of_the_first_source_at_four_of_the_steps_that_most_tasks_have():
    rewards = {0: [0, 0, 0, 0, 0], 1: [0, 0, 1, 1, 1], 2: [0, 1, 1, 1, 1], 3: [1, 1, 1, 1, 1]}
    pages = []
    for step in range(5):
        tasks = {n: {"index": n, "data_source": "control" if n == 3 else "sums"} for n in rewards}
        known = [
            session(step, f"{step}-{n}", reward=rewards[n][step], task=session()["task"] | own)
            for n, own in tasks.items()
        ]
        pages.append(page(*known, step=step))
    pages.append(page(session(9, "9-0", task=session()["task"] | {"index": 9}), step=9))
    assert [[group.uid for _, group in found] for found in story_of(pages)] == [["0-1"], ["1-1"], ["3-1"], ["4-1"]]
    assert index_of(pages, {})["story"] == index_of(pages, {})["groups"]["task"][1] and story_of([]) == []


def test_a_text_that_is_too_long_keeps_its_begin_and_its_end():
    (short, long), cut = cut_to(["ab", "first " + 500 * "x" + " Answer: 7"], 60)
    assert cut and short == "ab" and long.startswith("first xx") and long.endswith("answer: 7") and len(long) <= 60


def test_a_message_of_parts_is_searched_and_titled_by_its_texts():
    content = [{"type": "image"}, {"type": "text", "text": "What is\nthis?"}]
    task = {"messages": [{"role": "user", "content": content}], "ground_truth": None, "data_source": None, "index": 0}
    assert groups_of([session(task=task)])[0].title == "What is this?"
