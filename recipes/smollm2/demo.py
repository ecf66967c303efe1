"""A pretrained LLM as two agents. A scout tells a judge a secret word, in English that people can read."""

from pathlib import Path
from typing import ClassVar

from verl_mas.config.hydra.recipe.smollm2.words import SHUFFLED, SOURCE
from verl_mas.gym.demos.team import Curves, TeamDemo
from verl_mas.run_folder.records import Record
from verl_mas.util.text import printable


class SmolLM2Demo(TeamDemo):
    title = (
        "Secret words: SmolLM2-135M-Instruct is a scout that knows a word and writes a sentence, and a judge that\n"
        "reads the sentence and has to say the word alone. Each has a LoRA adapter on the same base."
    )
    data = ("smollm2",)
    recipe = "smollm2/laptop"
    folder = Path("runs/smollm2_demo")
    steps = 32
    # A step takes about 20 s, and saving adapters takes one second, so the first save comes within two minutes.
    overrides = ("trainer.save_freq=2", "trainer.max_actor_ckpt_to_keep=1")
    source = SOURCE
    success = f"val-core/{SOURCE}/acc/mean@1"
    solved = "the held-out words right"
    measured: ClassVar[Curves] = {
        "held-out words right": {"team": success, "with messages of other tasks": f"val-core/{SHUFFLED}/acc/mean@1"},
        "reward": {"team": "agent/judge/reward/score"},
    }

    def drawn(self, session: Record) -> str:
        note, answer = (printable(act["text"], keep="") for act in session["acts"])
        return f"{session['task']['ground_truth']:9} scout: {note:50} judge: {answer}"


run = SmolLM2Demo().run
