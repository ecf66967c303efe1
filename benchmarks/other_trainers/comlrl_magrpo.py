"""Train two agents with separate models by CoMLRL's MAGRPO on the workload: `python comlrl_magrpo.py MODEL LOG`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from workload import LEARNING_RATE, PROMPTS, REPLY, SESSIONS, questions, score, step_done

AGENTS = 2


class Logged(MAGRPOTrainer):
    """MAGRPO's trainer, which also writes a line to the log after the last agent's update of each step."""

    log: Path
    sampled = 0

    def _update_from_samples(self, agent_idx, samples):
        super()._update_from_samples(agent_idx, samples)
        self.sampled += sum(
            map(len, (reply for s in samples for reply in s.completions_data["completion_input_ids"][0]))
        )
        if agent_idx == AGENTS - 1:
            step_done(self.log, self.sampled)
            self.sampled = 0


def rewards(*replies: list[str]) -> list[float]:
    """Return a reward for each pair of replies: the mean of both scores."""
    return [sum(map(score, pair)) / AGENTS for pair in zip(*replies, strict=True)]


def main(model: str, log: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    # For MAGRPO a prompt ends at the first padding token. SmolLM2's padding token also ends each message, so it would
    # cut the prompt; use another token.
    tokenizer.pad_token = tokenizer.unk_token
    template = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
    prompts = [template([{"role": "user", "content": text}]) for text in questions()]
    settings = MAGRPOConfig(
        num_train_epochs=1,
        agent_learning_rate=LEARNING_RATE,
        num_agents=AGENTS,
        num_generations=SESSIONS,
        num_turns=1,
        max_new_tokens=REPLY,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        eval_interval=0,
        rollout_buffer_size=PROMPTS,
        logging_steps=10**9,
        agent_devices="cpu",
    )
    trainer = Logged(
        agents=[AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32) for _ in range(AGENTS)],
        num_agents=AGENTS,
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        reward_func=rewards,
        formatters=lambda item: item["prompt"],
        args=settings,
    )
    trainer.log = log
    # Without this line, the trainer writes its first update to Weights & Biases, whatever the settings are.
    trainer._last_train_log_step = 0  # noqa: SLF001
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
