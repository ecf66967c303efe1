"""The page about programs quotes the programs of `tests/gateway/programs`."""

import re

from framework_programs import HERE, ROOT


def test_the_code_of_the_page_is_in_the_programs():
    page = (ROOT / "docs/write/programs.md").read_text()
    rows = re.findall(r"^\| .* \| .*?`(.*?)`.* \| `(.*)` \|$", page, re.MULTILINE)
    assert len(rows) == 13
    assert [file for code, file in rows if code not in (HERE / "programs" / file).read_text()] == []
