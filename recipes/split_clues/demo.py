"""A sender and a receiver, with half of the clues each, learn to communicate. Alone, they solve at most a third."""

from pathlib import Path
from typing import ClassVar

from verl_mas.config.hydra.recipe.split_clues.clues import SHUFFLED, SOURCE
from verl_mas.gym.demos.team import Curves, TeamDemo
from verl_mas.run_folder.records import Record
from verl_mas.util.text import printable


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
    source = SOURCE
    success = f"val-core/{SOURCE}/acc/mean@1"
    solved = "the held-out tasks right"
    measured: ClassVar[Curves] = {
        "success on held-out tasks": {
            "team": success,
            "with messages of other tasks": f"val-core/{SHUFFLED}/acc/mean@1",
            "the best agent alone": 1 / 3,
        },
        "letters of its own in a message": {"sender": f"val-aux/{SOURCE}/named/mean@1"},
        "reward": {"team": "agent/receiver/reward/score"},
        "gradient norm": {"team": "actor/grad_norm"},
    }

    def drawn(self, session: Record) -> str:
        sender, receiver = (printable(act["text"], keep="") or "(empty)" for act in session["acts"])
        parts = session["task"]["messages"][0]["content"].rstrip("?").split("|")
        ending = "right" if session["outcome"]["reward"] else f"wrong: {session['task']['ground_truth']}"
        return f"sender has {parts[0]}, writes {sender:8}  receiver has {parts[1]}, answers {receiver:8} {ending}"


run = SplitCluesDemo().run
