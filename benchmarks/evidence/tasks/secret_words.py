"""Secret words: a pretrained LLM as a scout that knows a word, and as a judge that has to answer with it."""

from __future__ import annotations

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, influence, success
from benchmarks.evidence.tables import control
from benchmarks.evidence.tasks.base import Group, Task

STEPS = 48
METRIC = "val-core/{}/acc/mean@1"
# Each run takes a small part of the GPU, so that several runs can share a GPU.
VLLM = (
    "+recipe=smollm2/qwen3",
    "actor_rollout_ref.rollout.enforce_eager=true",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
    "++actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=2147483648",
)
ONE_POLICY = (
    *("~mas.policies.scout", "~mas.policies.judge", "mas.agents.scout.policy=main", "mas.agents.judge.policy=main"),
    *("actor_rollout_ref.model.lora_rank=0", "actor_rollout_ref.actor.optim.lr=1e-5"),
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
)


def trained(
    kind: str, name: str, *given: str, steps: int = STEPS, every: int = 8, on_gpu: bool = False, seeds: int = 3
) -> Training:
    shuffled = {"shuffled": METRIC.format("secret_words_shuffled")}
    settings = (f"trainer.total_training_steps={steps}", f"trainer.test_freq={every}")
    trial = Trial(kind, steps, METRIC.format("secret_words"), controls=shuffled, settings=settings)
    start = Start(f"smollm2_{kind}", ("data", "smollm2", "--kind", kind))
    return Training(f"{kind}_{name}", trial, start, "secret_words", given, on_gpu=on_gpu, seeds=seeds)


ADAPTERS = trained("word", "adapters", "+recipe=smollm2/laptop", seeds=5)
# SHARED trains all weights of one policy. ALONE is the judge alone, which reads the scout's knowledge itself.
SHARED = trained("word", "shared", *VLLM, *ONE_POLICY, on_gpu=True)
# ALONE has 40 steps, not 48 as planned, because two of its three runs lost their GPU at step 41.
ALONE = trained("word", "alone", *VLLM, *ONE_POLICY, "++mas.workflow.args.control=all", steps=40, on_gpu=True)
# Each agent knows half of the answer. A guessed colour is right in 1 of 12 tasks.
PAIR = trained("pair", "adapters", "+recipe=smollm2/laptop")
# The scout knows four colours. If it names two of them unasked and the judge guesses one, 1 answer in 4 is right.
ASKED = trained("asked", "adapters", *VLLM, on_gpu=True)
# The team of PAIR as a LangGraph program, and as a workflow with the settings of the program's recipe.
PROGRAM = trained("pair", "langgraph", "+recipe=langgraph_words/laptop", steps=6, every=6)
AS_WORKFLOW = ("+recipe=langgraph_words/laptop", "mas.workflow.name=secret_words", "mas.workflow.args=null")
NATIVE = trained("pair", "native", *AS_WORKFLOW, steps=6, every=6)

TASK = Task(
    "secret_words",
    "Secret words",
    (
        Group("secret_words_team", (ADAPTERS, SHARED, ALONE), ("shuffled",)),
        Group("secret_words_pair", (PAIR,), ("shuffled",)),
        Group("secret_words_program", (NATIVE, PROGRAM), ("shuffled",)),
        Group("secret_words_asked", (ASKED,), ("shuffled",)),
    ),
    (
        Claim("scout and judge with an adapter each name nine words of ten", success(ADAPTERS), low=0.9),
        Claim("with shuffled messages it is at chance", success(ADAPTERS, control("shuffled")), high=0.05),
        Claim("one policy with all weights learns as much", gap(SHARED, ADAPTERS), low=-0.1, seeds=3),
        Claim("the judge alone, which reads the word, is no better", gap(ALONE, ADAPTERS), high=0.1, seeds=3),
        Claim("where each knows half, a team gains 0.4", gain(PAIR), low=0.4, seeds=3),
        Claim("and ends 0.4 above what messages of other tasks give", influence(PAIR), low=0.4, seeds=3),
        Claim("and as a LangGraph program it learns as much", gap(PROGRAM, NATIVE), low=-0.1, seeds=3),
        Claim("where the judge has to ask first, a team gains 0.4", gain(ASKED), low=0.4, seeds=3),
        Claim("and ends 0.4 above what answers of other tasks give", influence(ASKED), low=0.4, seeds=3),
    ),
    (ASKED,),
)
