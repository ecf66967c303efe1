"""Tables for training: chats to fine-tune on, and pairs of replies to the same prompt."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_mas.errors import DataError
from verl_mas.results.formats.sessions import act_messages
from verl_mas.run_folder.disk import whole_file
from verl_mas.run_folder.records import Record

CUT = re.compile(r"\.\.\. \(\d+ characters\)$")  # the end of a text that `mas.trajectories.max_text_chars` has cut


def chats(records: Iterable[Record], counts: Counter[str], min_reward: float | None = None) -> Iterator[Record]:
    for act in _acts_of_whole_texts(records, counts):
        if min_reward is not None and (act["reward"] is None or act["reward"] < min_reward):
            below = f"a reward below {min_reward:g}" if act["reward"] is not None else "no reward"
            counts[f"acts skipped: {below}"] += 1
        else:
            yield {"messages": act.pop("prompt") + act.pop("reply"), **act}


def preferences(records: Iterable[Record], counts: Counter[str]) -> Iterator[Record]:
    """Yield pairs of replies to the same prompt. For each prompt that several acts of an agent share within the
    sessions of a task, the pair is the act with the highest and the act with the lowest reward."""
    by_prompt = defaultdict(list)
    for act in _acts_of_whole_texts(records, counts):
        if act["reward"] is None:
            counts["acts skipped: no reward"] += 1
            continue
        by_prompt[act["step"], act["task"], act["agent"], json.dumps(act["prompt"])].append(act)
    for acts in by_prompt.values():
        best, worst = (choose(acts, key=lambda act: act["reward"]) for choose in (max, min))
        if best["reward"] == worst["reward"] or best["reply"] == worst["reply"]:
            counts["acts skipped: no act of their agent and task has the same prompt and another reward"] += len(acts)
        else:
            counts["acts skipped: neither the best nor the worst of their prompt"] += len(acts) - 2
            pair = {"chosen": best["reply"], "rejected": worst["reply"]}
            pair |= {"reward_chosen": best["reward"], "reward_rejected": worst["reward"]}
            yield pair | {name: best[name] for name in ("prompt", "agent", "policy", "step", "task")}


def _acts_of_whole_texts(records: Iterable[Record], counts: Counter[str]) -> Iterator[Record]:
    for record in records:
        place = {"step": record["step"], "session": f"{record['uid']}_{record['session']}", "task": record["uid"]}
        for act in record["acts"]:
            prompt, reply = act_messages(act)
            texts = [message["content"] for message in prompt + reply]
            if record["status"] != "finished":
                counts[f"acts skipped: their session was {record['status']}"] += 1
            elif act["probe"]:
                counts["acts skipped: probes, which only measure how a candidate ends"] += 1
            elif any("[image]" in text for text in texts):
                counts["acts skipped: an [image]"] += 1
            elif any(map(CUT.search, texts)):
                counts["acts skipped: a text that mas.trajectories.max_text_chars cut"] += 1
            else:
                numbers = {"agent": act["agent"], "policy": act["policy"], "reward": act["reward"]["score"]}
                yield {"prompt": prompt, "reply": reply, **numbers, **place}


def write_table(rows: Iterable[Record], out: Path, counts: Counter[str]) -> None:
    import pyarrow.parquet

    if not (found := list(rows)):
        rule = "a row is an act, or a pair of acts with the same prompt and different rewards"
        raise DataError(f"no rows: {dict(counts)}", rule=rule, fix="use other --steps, or a lower --min-reward")
    with whole_file(out) as new:
        # The column for calls exists only if a message has a call, because some chat templates treat an empty field as
        # a call.
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), new)
    counts["rows"] = len(found)
