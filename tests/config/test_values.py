"""The validator converts values that fit their fields, and refuses all others in one error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypedDict

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mas.config.values import Above, Count, Range, Share, Text, ValueRule, check_fields, load_dataclass
from verl_mas.errors import ConfigError, ConfigErrors

if TYPE_CHECKING:
    from nowhere import Absent


class Options(TypedDict, total=False):
    share: Share
    stop: str | list[str]


class Even(ValueRule):
    """A rule of a third party."""

    def holds(self, value: int) -> bool:
        return value % 2 == 0

    def __str__(self) -> str:
        return "even"


class Foreign:
    """A class that the loader does not know."""


@dataclass
class Inner:
    name: Text
    pair: tuple[int, str] | None = None


@dataclass
class Thing:
    constant: ClassVar[int] = 1
    count: Count = 1
    rate: Annotated[float, Above(0), Range(high=1)] = 0.5
    even: Annotated[int, Even()] = 2
    flag: bool = False
    text: str = ""
    choice: Literal["em", "f1"] = "em"
    mixed: Literal[-1] | Count = -1
    limit: Annotated[int | None, Range(1)] = 5
    numbers: list[float] = field(default_factory=list)
    names: Sequence[str] = ()
    many: tuple[int, ...] = ()
    bare: list = field(default_factory=list)
    anything: Any = None
    free: dict[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    inner: Inner | None = None
    inners: dict[str, Inner] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    function: Callable[[int], int] | None = None
    foreign: Foreign | None = None
    absent: Absent | None = None
    carelessly: int = None  # type: ignore[assignment]
    hidden: int = field(default=0, init=False)


@dataclass
class Pair:
    low: int = 0
    high: int = 1

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"low={self.low} > high={self.high}", rule="low is at most high", fix="swap them")


@dataclass
class Pairs:
    pairs: list[Pair] = field(default_factory=list)
    count: Count = 1


def load(values: Any) -> Thing:
    return load_dataclass(Thing, values, "it")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"rate": numpy.float32(0.5)}, 0.5),
        ({"count": numpy.int64(3)}, 3),
        ({"mixed": -1}, -1),
        ({"numbers": (1, 2.5)}, [1.0, 2.5]),
        ({"many": [1, 2]}, (1, 2)),
        ({"free": {1: None}}, {"1": None}),
        ({"inner": {"name": "x", "pair": [1, "a"]}}, Inner("x", (1, "a"))),
        ({"inner": Inner("x")}, Inner("x")),
        ({"options": {"stop": ["a", "b"]}}, {"stop": ["a", "b"]}),
        ({"function": abs}, abs),
        ({"absent": 1}, 1),
    ],
)
def test_a_value_that_fits_has_the_type_of_its_field(values, found):
    [(name, _)] = values.items()
    value = getattr(load(values), name)
    assert value == found and type(value) is type(found)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"count": 0}, "it.count is a whole number, at least 1"),
        ({"count": True}, "it.count is a whole number"),
        ({"rate": 0}, "it.rate is a finite number, above 0, at most 1"),
        ({"numbers": [10**400]}, r"it.numbers\[0\] is a finite number"),
        ({"numbers": [1, math.nan]}, r"it.numbers\[1\] is a finite number"),
        ({"numbers": "12"}, "it.numbers is a list, each item a finite number"),
        ({"even": 3}, "it.even is a whole number, even"),
        ({"flag": 1}, "it.flag is true or false"),
        ({"choice": "rouge"}, "it.choice is one of em, f1"),
        ({"mixed": 0}, "it.mixed is -1, or a whole number, at least 1"),
        ({"limit": 0}, "it.limit is a whole number, or null, at least 1"),
        ({"free": [1]}, "it.free is a mapping"),
        ({"counts": {"a": "b"}}, "it.counts.a is a whole number"),
        ({"inner": {}}, "it.inner.name is text, not empty, and has no default"),
        ({"inner": {"name": "x", "pair": [1]}}, "it.inner.pair is a list"),
        ({"inners": {"a": {"name": "x", "pear": 1}}}, "it.inners.a takes the settings of Inner only"),
        ({"options": {"share": 2}}, "it.options.share is a finite number, between 0 and 1"),
        ({"options": {"stopp": "a"}}, "it.options takes the settings of Options only"),
        ({"hidden": 2}, "it takes the settings of Thing only"),
        ("text", "it is a mapping"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_path_rule_and_fix(values, rule):
    with pytest.raises(ConfigError, match=rule) as refused:
        load(values)
    assert not isinstance(refused.value, ConfigErrors), "one mistake is one error"
    assert refused.value.fix


def test_all_mistakes_are_refused_at_once():
    with pytest.raises(ConfigErrors) as refused:
        load({"count": 0, "choice": "f11", "coumt": 1, "inner": {"pair": "x"}, "inners": {"a": {"name": 1}, "b": None}})
    assert "did you mean 'f1'" in refused.value.errors[1].fix and "did you mean 'count'" in refused.value.errors[2].fix
    assert [error.value for error in refused.value.errors] == [
        "it.count=0",
        "it.choice='f11'",
        "it.coumt is not a setting",
        "it.inner.pair='x'",
        "it.inner has no name",
        "it.inners.a.name=1",
        "it.inners.b has no name",
    ]


def test_null_is_none_where_the_field_takes_it_and_else_the_default():
    made = load({"limit": None, "count": None, "carelessly": None, "inner": None, "free": None})
    assert (made.limit, made.count, made.carelessly, made.inner, made.free) == (None, 1, None, None, {})
    assert load(None) == Thing()


def test_a_dataclass_constructed_by_code_follows_the_same_rules():
    @dataclass
    class Made:
        rounds: Count = 1
        name: str = None  # type: ignore[assignment]

        def __post_init__(self):
            check_fields(self, "Made")

    assert Made(2).rounds == 2
    with pytest.raises(ConfigErrors, match=r"Made\.rounds is a whole number, at least 1"):
        Made("abc", name=1)


def test_a_broken_rule_between_fields_is_reported_with_the_other_errors():
    with pytest.raises(ConfigErrors) as refused:
        load_dataclass(Pairs, {"pairs": [{"low": 2}, {"low": "x", "high": 0}], "count": 0}, "it")
    assert [error.value for error in refused.value.errors] == ["low=2 > high=1", "it.pairs[1].low='x'", "it.count=0"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["em", "f1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(list(Thing.__dataclass_fields__)) | st.text(max_size=3)


@given(st.dictionaries(names, plain, max_size=5))
def test_any_value_is_loaded_or_refused_and_a_loaded_value_loads_again(values):
    try:
        made = load(values)
    except ConfigError:
        return
    settings = {name: value for name, value in asdict(made).items() if name != "hidden"}
    assert load(settings) == made
    check_fields(made, "it")
