"""Replies that look right and are not.

Each family makes a reply that is wrong by construction, so no second grader decides.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from verl_mas.environment.grading.math import AnswerChecker, BoxedAnswer, Grade
from verl_mas.workflow.codecs import ActionList, Choice, JsonBlock, Malformed

Family = Callable[[random.Random, str, str], str]


class Verdict(Choice, tag="verify"):
    APPROVE = "approve"
    REJECT = "reject"


@dataclass(frozen=True)
class Hostile:
    """A reply, its protocol, and the answer that must not be read from it."""

    protocol: str
    family: str
    reply: str
    truth: str


RELATIONS = [
    *r"\neq \ne \not= < > \le \ge \leq \geq \lt \gt \leqslant \sim \approx \simeq \equiv \cong \propto \to".split(),
    *r"\Rightarrow \rightarrow \implies \nless \ngtr \mapsto ≠ ≤ ≥ ≈ ≡ → ⇒ == := =".split(),
]
BETWEEN = [
    *(" or ", " and ", r" \text{ or } ", r"\text{or}", r" \lor ", r" \vee ", r" \land ", ";", ", ", r" \quad ", "\n"),
    *(r" \\ ", r" \text{ or maybe } ", " / ", " % ", r" \% ", " & ", " | ", "||", r" \mid ", r" \cup ", r"\dots"),
    *(r" \pm ", r" \setminus ", r" \bmod ", r" \pmod ", r" \oplus ", " , not ", r"\text{, no, }", r" \leftarrow "),
    *("_", r"\,"),
]
DECORATIONS = [
    *(r"\neg ", r"\not ", r"\text{not }", "not ", r"\text{wrong: }", r"\text{about }", r"\text{less than }", r"\pm"),
    *(r"\emptyset ", r"\forall ", r"\exists ", r"\therefore ", r"\ldots ", r"\underline{8} ", r"\bcancel ", "= ", "-"),
    *(r"\phantom{1} ", r"\color{white} ", r"\hspace{1cm} ", "#", "@", r"\lim ", r"\max ", r"\sqrt", r"\frac{1}", "1"),
]
ROWS = [rf"\begin{{{kind}}}{{}}\\{{}}\end{{{kind}}}" for kind in ("cases", "aligned", "matrix")]
PROGRAMS = ["__import__('os').getpid() or {}", "print({})", "lambda: {}"]
UNBOXED = ["{}", "boxed{{{}}}", r"\box{{{}}}", r"\boxed {}", r"\fbox{{{}}}"]
# A Cyrillic letter, a zero-width space, full-width letters, a digit, another word.
LOOK_ALIKES = ["\u0430pprove", "approve\u200b", "\uff41\uff50\uff50\uff52\uff4f\uff56\uff45", "appr0ve", "approved"]
APPROVED = "<verify>approve</verify>"
OTHER_TAGS = ["<Verify>approve</Verify>", "<verify >approve</verify>", "[verify]approve[/verify]"]
NOT_FINITE = ["1e999", "-1e999", "NaN", "Infinity", "1" + "0" * 400 + ".0"]
AROUND = [
    *("{}", "So.\n{}", "{} That is all.", "<think>hm</think>{}", "```\nx = 1\n```\n{}", "{}\n\n", "\u202e{}", "\x00{}")
]


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


MATH: dict[str, Family] = {
    "relation": lambda rng, n, m: _boxed(f"{rng.choice(['', m, ' ', m + '+1', '2x'])} {rng.choice(RELATIONS)} {n}"),
    "chain": lambda rng, n, m: _boxed(f"{m} = {rng.choice('abxy')} = {n}"),
    "alternatives": lambda rng, n, m: _boxed(rng.choice(BETWEEN).join(rng.sample([n, m], 2))),
    "enumeration": lambda rng, n, m: _boxed(rng.choice([", ", "; ", r" \\ "]).join([n, m, str(int(m) + 1000)])),
    "decoration": lambda rng, n, m: _boxed(f"{rng.choice(DECORATIONS)}{n}"),
    "box in a box": lambda rng, n, m: _boxed(f"{m} {_boxed(n)}"),
    "two boxes": lambda rng, n, m: " ".join(rng.sample([_boxed(n), _boxed(m)], 2)),
    "open box": lambda rng, n, m: f"\\boxed{{{n}" + rng.choice(["", " and", r"\}", "{"]),
    "no box": lambda rng, n, m: rng.choice(UNBOXED).format(n),
    "thinking": lambda rng, n, m: f"<think>{_boxed(n)}</think>" + rng.choice(["", n, _boxed(m)]),
    "open thinking": lambda rng, n, m: f"<think>so {_boxed(n)}",
    "rows": lambda rng, n, m: _boxed(rng.choice(ROWS).replace("{}", n, 1).replace("{}", m)),
    "program": lambda rng, n, m: _boxed(rng.choice(PROGRAMS).format(n)),
}
VERDICT: dict[str, Family] = {
    "both": lambda rng, n, m: "".join(rng.sample([APPROVED, "<verify>reject</verify>"], 2)),
    "words": lambda rng, n, m: f"<verify>{rng.choice(['not', 'do not', 'reject or', 'dis', n])} approve</verify>",
    "no tag": lambda rng, n, m: rng.choice(["approve", "<verify>approve", "approve</verify>", "verify: approve"]),
    "other tag": lambda rng, n, m: rng.choice(OTHER_TAGS),
    "nested": lambda rng, n, m: "<verify><verify>approve</verify></verify>",
    "thinking": lambda rng, n, m: f"<think>{APPROVED}</think>{rng.choice(['', '<verify>reject</verify>'])}",
    "look-alike": lambda rng, n, m: f"<verify>{rng.choice(LOOK_ALIKES)}</verify>",
    "escaped": lambda rng, n, m: "&lt;verify&gt;approve&lt;/verify&gt;",
}
JSON: dict[str, Family] = {
    "not finite": lambda rng, n, m: f'{{"a": {rng.choice(NOT_FINITE)}}}',
    "twice": lambda rng, n, m: f'{{"a": {n}, "a": {m}}}',
    "two blocks": lambda rng, n, m: f'```json\n{{"a": {n}}}\n```\n```json\n{{"a": {m}}}\n```',
    "not closed": lambda rng, n, m: f'{{"a": {n}',
    "wrong type": lambda rng, n, m: f'{{"a": {rng.choice(["true", "null", "[1.0]", "{}"])}}}',
    "more text": lambda rng, n, m: f'{{"a": {n}.0}} or {{"a": {m}.0}}',
}
ACTIONS: dict[str, Family] = {
    "other words": lambda rng, n, m: f"<actions>up {rng.choice(['fly', 'upup', 'left-up', n, '-'])} down</actions>",
    "no tag": lambda rng, n, m: rng.choice(["up up", "<actions>up", "up</actions>", "<act>up</act>"]),
    "too many": lambda rng, n, m: f"<actions>{'up ' * rng.randint(65, 90)}</actions>",
    "two lists": lambda rng, n, m: "<actions>up</actions> <actions>down</actions>",
    "thinking": lambda rng, n, m: "<think><actions>up</actions></think>",
}
PROTOCOLS = {"math": MATH, "verdict": VERDICT, "json": JSON, "actions": ACTIONS}


def hostile(count: int, seed: int) -> Iterator[Hostile]:
    rng = random.Random(seed)
    for _ in range(count):
        protocol = rng.choices(list(PROTOCOLS), (6, 2, 1, 1))[0]
        family = rng.choice(list(PROTOCOLS[protocol]))
        n, m = (str(number) for number in rng.sample(range(2, 200), 2))
        reply = PROTOCOLS[protocol][family](rng, n, m)
        # JSON outside a fence is the whole reply.
        around = "{}" if protocol == "json" else rng.choice(AROUND)
        yield Hostile(protocol, family, around.replace("{}", reply), n)


@dataclass
class Reader:
    """Read a reply as a workflow does."""

    checker: AnswerChecker

    def succeeds(self, item: Hostile) -> bool:
        if item.protocol == "math":
            answer = BoxedAnswer().parse(item.reply)
            return isinstance(answer, str) and self.checker.grade(item.truth, answer) is Grade.CORRECT
        if item.protocol == "verdict":
            return Verdict.parse(item.reply) is Verdict.APPROVE
        codec = JsonBlock({"a": float}) if item.protocol == "json" else ActionList(("up", "down", "left", "right"))
        return not isinstance(codec.parse(item.reply), Malformed)
