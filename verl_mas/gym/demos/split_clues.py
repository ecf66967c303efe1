"""A sender and a receiver, with half of the clues each, learn to communicate. Alone, they solve at most a third."""

import random
from pathlib import Path
from typing import ClassVar

from verl_mas.gym import split_clues
from verl_mas.gym.demos.team import Curves, Levels, TeamDemo
from verl_mas.run_folder.records import Record
from verl_mas.util.text import printable

SUCCESS = "success on held-out tasks"


class SplitCluesDemo(TeamDemo):
    title = (
        "Split clues: one of eight letters is right. A sender and a receiver have three letters each and share only "
        "that one.\nThe sender writes three letters, the receiver answers. Without a message, one answer in three is "
        "right."
    )
    data = ("split_clues", "--noise", "0.6")
    recipe = "split_clues/laptop"
    folder = Path("runs/demo")
    steps = 40
    overrides = (
        *("trainer.test_freq=4", "trainer.save_freq=8"),
        *("trainer.max_actor_ckpt_to_keep=1", "mas.trajectories.enabled=true"),
    )
    success = f"val-core/{split_clues.SOURCE}/acc/mean@1"
    solved = "the held-out tasks right"
    measured: ClassVar[Curves] = {
        SUCCESS: {"team": success, "with messages of other tasks": f"val-core/{split_clues.SHUFFLED}/acc/mean@1"},
        "letters of its own in a message": {"sender": f"val-aux/{split_clues.SOURCE}/named/mean@1"},
        "reward": {"team": "agent/receiver/reward/score"},
        "gradient norm": {"team": "actor/grad_norm"},
    }
    levels: ClassVar[Levels] = {SUCCESS: {"the best agent alone": 1 / 3}}

    def draw(self, step: int) -> str:
        sessions = self.sessions(step)
        own = [index for index in sorted(sessions) if sessions[index]["task"]["data_source"] == split_clues.SOURCE]
        return "\n".join(_drawn(sessions[index]) for index in random.Random(0).sample(own, 5))


def _drawn(session: Record) -> str:
    sender, receiver = (printable(act["text"], keep="") or "(empty)" for act in session["acts"])
    parts = session["task"]["messages"][0]["content"].rstrip("?").split("|")
    ending = "right" if session["outcome"]["reward"] else f"wrong: {session['task']['ground_truth']}"
    return f"sender has {parts[0]}, writes {sender:8}  receiver has {parts[1]}, answers {receiver:8} {ending}"


run = SplitCluesDemo().run
