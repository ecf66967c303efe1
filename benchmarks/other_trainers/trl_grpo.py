"""Run TRL's GRPO on the workload: `python trl_grpo.py MODEL LOG`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workload import LEARNING_RATE, PROMPTS, REPLY, SESSIONS, STEPS, questions, score, step_done


def main(model: str, log: Path) -> None:
    sampled = 0

    def reward(completions, completion_ids, **_):
        nonlocal sampled
        sampled = sum(map(len, completion_ids))
        return [score(messages[-1]["content"]) for messages in completions]

    class Steps(TrainerCallback):
        def on_step_end(self, *_, **__):
            step_done(log, sampled)

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=PROMPTS * SESSIONS,
            num_generations=SESSIONS,
            max_completion_length=REPLY,
            learning_rate=LEARNING_RATE,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in questions()]),
            callbacks=[Steps()],
        )
        trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
