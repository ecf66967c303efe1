"""Recorded requests of other frameworks: which of them continue a row. Does not need the frameworks."""

from __future__ import annotations

import re

import pytest
from framework_programs import HERE, REPLIES, ROOT, recorded, table
from reference_rows import placed

PAGE = (ROOT / "docs/write/programs.md").read_text()
ROWS = (HERE / "programs" / "README.md").read_text()


@pytest.mark.parametrize("name", REPLIES)
def test_a_recording_has_the_replies_of_each_agent(name):
    assert {request["body"]["model"] for request in recorded(name)} == set(REPLIES[name])


def test_what_the_page_says_of_a_framework_is_in_its_program():
    rows = re.findall(r"^\| .* \| .*?`(.*?)`.* \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 13
    assert [file for code, file in rows if code not in (HERE / "programs" / file).read_text()] == []


def test_the_readme_has_the_acts_and_rows_of_the_recordings():
    assert [line for line in table() if line not in ROWS] == []


def test_tools_are_a_part_of_the_prompt():
    assert [each.why for each in placed(recorded("openai_client:team"))] == ["new", "continued", "new"]


def test_a_reply_that_was_continued_twice_is_branched_the_second_time():
    first, second, _ = recorded("openai_client:team")
    assert [each.why for each in placed([first, second, second])] == ["new", "continued", "branched"]


def test_an_edited_reply_is_not_continued():
    first, second = recorded("curl_client.sh")
    second["body"]["messages"][1]["content"] += "!"
    assert [each.why for each in placed([first, second])] == ["new", "new"]
