"""Plain values as JSON, and calls of functions that a program defines.

Three kinds of processes run this file: the caller, a contained program, and a remote service, which gets this source
code followed by the program. So the file imports only the standard library, and runs on Python 3.9 and later.

A plain value is None, a bool, int, float, complex, str or bytes, or a list, tuple, set, frozenset or dict of these. Its
type is exactly one of these, since an instance of a subclass may compare equal to anything. Lists and most scalars are
written as plain JSON. Any other value is written as a JSON object whose only key is the name of the type. Text from a
program is read with bounded size and depth.
"""

import json
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

MAX_BYTES = 1_000_000  # limit of all answers of a program together
MAX_DEPTH = 50
# A level of a value is up to three levels of JSON: {"dict": [[key, value]]}. An answer adds one level.
_MAX_JSON_DEPTH = 3 * (MAX_DEPTH + 1) + 1
_MAX_DIGITS = 20  # Longer numbers are hexadecimal, because reading decimal digits takes quadratic time.
# Python refuses to print integers of more than 4,300 decimal digits, so such an integer would raise an error wherever a
# verdict is shown.
_MAX_HEX_DIGITS = 3300
_MAX_EQUAL_HASHES = 32  # Inserting values with equal hashes takes quadratic time.

# A function, its positional and its keyword arguments.
CallParts = tuple[str, Sequence[object], Mapping[str, object]]


class NotPlain(ValueError):
    """A value that is not plain, or a text that `dumps` cannot have written."""


def dumps(value: object) -> str:
    """Write a plain value as one line of ASCII."""
    try:
        return json.dumps(_tagged(value, MAX_DEPTH))
    except RecursionError:
        raise NotPlain(f"more than {MAX_DEPTH} levels") from None


def loads(text: str) -> object:
    """Read a value that `dumps` wrote. Any other text raises NotPlain. Takes linear time."""
    return _untagged(_parse(text), MAX_DEPTH)


def _tagged(value: object, depth: int) -> object:
    if depth < 0:
        raise NotPlain(f"more than {MAX_DEPTH} levels")
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int and isinstance(value, int):
        return value if abs(value) < 2**63 else {"int": hex(value)}
    if kind is list and isinstance(value, list):
        return _tagged_items(value, depth)
    if kind in (tuple, set, frozenset) and isinstance(value, Iterable):
        return {kind.__name__: _tagged_items(value, depth)}
    if kind is dict and isinstance(value, dict):
        return {"dict": [_tagged_items(pair, depth) for pair in value.items()]}
    if kind is bytes and isinstance(value, bytes):
        return {"bytes": value.hex()}
    if kind is complex and isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if kind.__module__.split(".")[0] == "numpy" and hasattr(value, "tolist"):
        return _tagged(value.tolist(), depth - 1)
    raise NotPlain(f"a value of type {kind.__name__}")


def _tagged_items(items: Iterable[object], depth: int) -> list[object]:
    return [_tagged(item, depth - 1) for item in items]


def _untagged(data: object, depth: int) -> object:
    if depth < 0:
        raise NotPlain(f"more than {MAX_DEPTH} levels")
    if isinstance(data, list):
        return [_untagged(item, depth - 1) for item in data]
    if isinstance(data, str) and data != _encodable(data):
        raise NotPlain("a text that UTF-8 does not have")
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise NotPlain("an object without one type")
    ((kind, content),) = data.items()
    try:
        if kind in _OF_TEXT and isinstance(content, str):
            return _OF_TEXT[kind](content)
        if kind in _OF_LIST and isinstance(content, list):
            return _OF_LIST[kind](content, depth - 1)
    except (TypeError, ValueError) as error:  # such as a value that cannot be hashed
        raise NotPlain(str(error)[:100]) from None
    raise NotPlain(f"an object of type {kind[:20]!r}")


def _encodable(text: str) -> str:
    """Escape lone surrogates, which JSON can hold, but which UTF-8 files and tokenizers refuse."""
    return text.encode("utf-8", "backslashreplace").decode()


def _hashed(items: list[object]) -> list[object]:
    """Return the items, if a set or dict of them can be built in linear time; else raise NotPlain."""
    hashes = Counter(map(hash, items))
    if hashes and max(hashes.values()) > _MAX_EQUAL_HASHES:
        raise NotPlain("too many values of one hash")
    return items


def _items(content: list[object], depth: int) -> list[object]:
    return [_untagged(item, depth) for item in content]


def _dict(content: list[Sequence[object]], depth: int) -> dict[object, object]:
    keys = _hashed([_untagged(key, depth) for key, _ in content])
    return dict(zip(keys, [_untagged(value, depth) for _, value in content]))  # noqa: B905  Python 3.9


def _number(digits: str, base: int, most: int) -> int:
    if len(digits) > most:
        raise NotPlain("a number of too many digits")
    return int(digits, base)


_OF_TEXT: dict[str, Callable[[str], object]] = {
    "int": lambda digits: _number(digits, 16, _MAX_HEX_DIGITS),
    "bytes": bytes.fromhex,
}
_OF_LIST: dict[str, Callable[..., object]] = {
    "tuple": lambda content, depth: tuple(_items(content, depth)),
    "set": lambda content, depth: set(_hashed(_items(content, depth))),
    "frozenset": lambda content, depth: frozenset(_hashed(_items(content, depth))),
    "dict": _dict,
    "complex": lambda content, depth: complex(*content),
}


def _parse(text: str) -> object:
    if len(text) > MAX_BYTES:
        raise NotPlain(f"more than {MAX_BYTES} bytes")
    if not _is_shallow(text):
        raise NotPlain(f"more than {MAX_DEPTH} levels")
    try:
        return json.loads(text, parse_int=lambda digits: _number(digits, 10, _MAX_DIGITS))
    except ValueError as error:
        raise NotPlain(f"not JSON: {error}"[:200]) from None


def _is_shallow(text: str) -> bool:
    """Whether JSON has few levels, counted from its brackets outside of strings. Parsing deep JSON may overflow the C
    stack."""
    text = re.sub(r'"[^"]*"', "", re.sub(r"\\.", "", text))
    brackets = re.sub(r"[^\[\]{}]", "", text)
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0) <= _MAX_JSON_DEPTH


def dump_calls(calls: Sequence[CallParts]) -> str:
    """Write calls as one line of ASCII."""
    return json.dumps([[name, dumps(list(args)), dumps(dict(kwargs))] for name, args, kwargs in calls])


def run_calls(program: str, calls: str, write: Callable[[str], object]) -> None:
    """Run a program as a module, then call the functions that it defines. `write` gets one line per answer, as soon as
    the answer is known."""
    module = types.ModuleType("program")
    sys.modules["program"] = module  # dataclasses and pickle look up the module of a class here
    try:
        exec(compile(program, "program.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # noqa: BLE001  boundary: whatever the program raises is data for the caller
        write(json.dumps({"failed": _text(error)}))
        return
    for name, args, kwargs in json.loads(calls):
        write(_answer(module.__dict__, name, args, kwargs))


def _answer(namespace: dict[str, object], name: str, args: str, kwargs: str) -> str:
    try:
        value = _function(namespace, name)(*loads(args), **loads(kwargs))  # type: ignore[misc, arg-type]
        line = json.dumps({"value": _tagged(value, MAX_DEPTH)})
    except BaseException as error:  # noqa: BLE001  boundary: whatever a call raises is data for the caller
        return json.dumps({"error": _text(error)})
    return line if len(line) < MAX_BYTES else json.dumps({"error": f"a value of more than {MAX_BYTES} bytes"})


def _function(namespace: dict[str, object], name: str) -> Callable[..., object]:
    first, *rest = name.split(".")
    if first not in namespace:
        raise NameError(f"name {first!r} is not defined")
    target = namespace[first]
    for part in rest:
        target = getattr(target() if isinstance(target, type) else target, part)
    return target  # type: ignore[return-value]


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # noqa: BLE001  boundary: the program's own __str__
        return type(error).__name__[:500]


def read_answers(written: str, count: int, missing: str) -> list[tuple[object, str | None]]:
    """Read a pair of value and error per call from the lines that `run_calls` wrote. Calls without a line get the error
    `missing`."""
    answers: list[tuple[object, str | None]] = []
    # Text after the last newline is a line that was cut off.
    for line in written[:MAX_BYTES].split("\n")[:-1][:count]:
        try:
            answer = _parse(line)
            kind, content = next(iter(answer.items())) if isinstance(answer, dict) and answer else ("", "")
            if kind == "failed":
                return [(None, _encodable(str(content)[:500]))] * count
            answers.append(
                (_untagged(content, MAX_DEPTH), None) if kind == "value" else (None, _encodable(str(content)[:500]))
            )
        except NotPlain as error:
            answers.append((None, f"not a plain value: {error}"))
    return (answers + [(None, missing)] * count)[:count]


def script(program: str, calls: Sequence[CallParts], mark: str) -> str:
    """Make a program that runs in another interpreter and prints each answer on a line that starts with `mark`."""
    with open(__file__, encoding="utf-8") as file:
        source = file.read()
    write = f"lambda line: print(chr(10) + {mark!r} + line, flush=True)"
    return f"{source}\n\nrun_calls({program!r}, {dump_calls(calls)!r}, {write})\n"


def marked_lines(stdout: str, mark: str) -> str:
    """Extract the lines for `read_answers` from the output of a program that `script` made."""
    return "".join(f"{line[len(mark) :]}\n" for line in stdout.split("\n")[:-1] if line.startswith(mark))
