"""Python programs that are forked from a process that has imported their packages."""

import asyncio
import sys
import textwrap

import pytest

from verl_mas.errors import ProgramLost, SessionFault
from verl_mas.gateway import commands
from verl_mas.gateway.commands import Command

VARIABLES = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "a key"}
ANSWER = """
import json, os
def answer(value):
    os.write(3, json.dumps({"answer": value}).encode())
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write a program, modules next to it, and installed modules."""
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.chdir(tmp_path)

    def write(text: str, own: str = "", imported: str = "", **settings: object) -> Command:
        for file, content in {
            "program.py": ANSWER + text,
            "own.py": own,
            "lib/site-packages/heavy.py": imported,
        }.items():
            (tmp_path / file).write_text(textwrap.dedent(content))
        return Command((sys.executable, str(tmp_path / "program.py"), "an argument"), **settings)

    yield write
    for server in commands.SERVERS.values():
        server.close()


def played(command: Command, sessions: int = 1) -> list[object]:
    async def together() -> list[dict[str, object]]:
        return await asyncio.gather(*(command.play({}, VARIABLES) for _ in range(sessions)))

    return [outcome["answer"] for outcome in asyncio.run(together())]


def failed(command: Command) -> str:
    with pytest.raises(SessionFault) as fault:
        played(command)
    return fault.value.cause


LOGS = "import os\nopen('log', 'a').write(__name__ + ' ' + os.environ['OPENAI_API_KEY'] + ' ')\n"


def test_an_installed_package_is_imported_once_and_a_module_of_the_user_in_each_session(program, tmp_path):
    text = "import own, random, sys\nanswer([random.random(), sys.argv, __name__, __file__, os.getcwd()])"
    answers = played(program(text, own="import heavy\n" + LOGS, imported=LOGS), sessions=3)
    file = str(tmp_path / "program.py")
    places = [file, "an argument"], "__main__", file, str(tmp_path)
    assert [tuple(answer[1:]) for answer in answers] == [places] * 3 and len({answer[0] for answer in answers}) == 3
    words = (tmp_path / "log").read_text().split(" ")
    assert words.count("heavy") == 1 and words.count("own") == words.count("key") == 3


@pytest.mark.parametrize(
    ("text", "imported", "more"),
    [
        ("def late():\n    import heavy\nlate()", LOGS, {"preload": ("heavy",)}),
        ("try:\n    import heavy, no_such\nexcept ImportError:\n    pass", LOGS, {}),
        ("import sys\nsys.path.append(os.path.join('lib', 'more'))\nimport beside", "", {}),
    ],
    ids=["preload", "handled", "path"],
)
def test_imports_are_found(program, tmp_path, text, imported, more):
    (tmp_path / "lib" / "more" / "site-packages").mkdir(parents=True)
    (tmp_path / "lib" / "more" / "beside.py").write_text("")
    command = program(text + "\nanswer(1)", imported=imported, **more)
    assert played(command, sessions=2) == [1, 1] and command not in commands.ALONE
    assert not imported or (tmp_path / "log").read_text().count("heavy") == 1


def test_a_name_of_an_imported_module_that_is_a_variable_is_the_sessions_own(program):
    imported = "import os\nurl, key = os.environ.get('OPENAI_BASE_URL'), os.environ['OPENAI_API_KEY']"
    command = program("import heavy\nanswer([heavy.url, heavy.key])", imported=imported)
    assert played(command, sessions=2) == [[*VARIABLES.values()]] * 2 and command not in commands.ALONE


@pytest.mark.parametrize(
    ("imported", "reason"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "a thread"),
        ("import os\nclass Client:\n    url = os.environ.get('OPENAI_BASE_URL', '')", "address or key of a session"),
        ("import os\ndef ask(url=os.environ['OPENAI_BASE_URL']):\n    pass", "address or key of a session"),
        ("import os\nkept = [('url', (os.environb[b'OPENAI_BASE_URL'],))]", "address or key of a session"),
        ("import asyncio\nloop = asyncio.new_event_loop()", "opened"),
        ("import os\nos.register_at_fork(after_in_child=lambda: os.abort())", "wait status 6"),
    ],
    ids=["thread", "variable", "default", "bytes", "loop", "hook"],
)
def test_a_program_that_cannot_be_forked_is_an_interpreter_per_session_which_is_said_once(
    program, caplog, imported, reason
):
    command = program("import heavy\nanswer(os.environ['OPENAI_BASE_URL'])", imported=imported)
    assert played(command, sessions=2) == [VARIABLES["OPENAI_BASE_URL"]] * 2
    [record] = [record for record in caplog.records if record.name == commands.__name__]
    assert reason in record.getMessage()
    assert asyncio.run(command.play({}, VARIABLES))["info"] == {"imported_again": 1.0}


@pytest.mark.parametrize("fork", [True, False])
def test_a_missing_package_ends_the_run_with_the_traceback_of_the_program(program, fork):
    command = program("import own", own="import no_such_package", import_once=fork)
    if not fork:
        assert "No module named 'no_such_package'" in failed(command)
        return
    with pytest.raises(ProgramLost, match=r'own.py", line 1, in <module>\n.*import no_such_package'):
        played(command)


@pytest.mark.parametrize("preload", [(), ("heavy",)])
def test_an_error_of_an_import_may_be_long(program, preload):
    with pytest.raises(ProgramLost, match=r"cannot be imported:\n.*😀$"):
        played(program("import heavy", imported="raise ImportError('😀' * 70_000)", preload=preload))


def test_a_module_to_preload_that_cannot_be_imported_ends_the_run(program):
    with pytest.raises(ProgramLost, match=r"preload cannot be imported:\n(.*\n)*.*'no_such_module'"):
        played(program("answer(1)", preload=("no_such_module",)))


ENDS = {
    "sys.exit(3)": "status 3",
    "sys.exit('no luck')": "no luck",
    "os._exit(4)": "status 4",
    "1 / 0": "line 6, in <module>\n    1 / 0",
    "os.kill(os.getpid(), 9)": "status -9",
    "os.kill(os.getpid(), 15)": "status -15",
    "x = = 1": "SyntaxError",
    "import atexit; atexit.register(os._exit, 5)": "status 5",
}


@pytest.mark.parametrize("text", ENDS)
def test_a_fork_ends_as_an_interpreter_does(program, text):
    causes = [failed(program("import sys\n" + text, import_once=fork)) for fork in (True, False)]
    assert ENDS[text] in causes[0] and causes[0] == causes[1]


@pytest.mark.parametrize("place", ["", "own."])
def test_buffered_output_of_a_program_is_written_at_its_end(program, place):
    text = f"import own\n{place}out = open(3, 'w')\nprint(json.dumps({{'answer': 1}}), file={place}out)"
    assert played(program(text)) == [1]


def test_a_program_has_no_more_descriptors_and_rights_than_an_interpreter_of_its_own(program):
    rights = "open('/proc/self/status').read().partition('CapEff:')[2].split()[0]"
    text = f"answer([os.listdir('/proc/self/fd'), {rights}])"
    (forked,), (own,) = played(program(text)), played(program(text, import_once=False))
    assert forked == own and len(own[0]) == 5  # includes the folder that is being listed


def test_an_outcome_may_come_in_two_writes(program):
    text = """os.write(3, b'{"answer": "a ')\n__import__('time').sleep(0.1)\nos.write(3, b'b"}')"""
    assert played(program(text)) == ["a b"]


def test_a_program_that_forks_has_the_outcome_of_its_own_process_and_no_child_stays(program):
    text = (
        "if os.fork():\n    answer(1)\n    os.wait()\nelse:\n    answer(2)\nos.fork() or __import__('time').sleep(99)"
    )
    assert played(program(text), sessions=2) == [1, 1]
