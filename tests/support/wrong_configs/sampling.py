"""Names and values of sampling settings that the engine of a policy, or an endpoint, does not take."""

from __future__ import annotations

from wrong_configs.case import wrong

SOLVER = "++mas.agents.solver"
SAMPLING = f"{SOLVER}.sampling"
VALIDATION = "actor_rollout_ref.rollout.val_kwargs"
EXTRA = f"{SAMPLING}.extra"
REMOTE = "++mas.policies={main:{},far:{remote:{base_url:http://127.0.0.1:9/v1,model:m}}} mas.agents.solver.policy=far"

CASES = (
    wrong(f"{SAMPLING}.temprature=0.5", "did you mean 'temperature'?"),
    wrong(f"{SOLVER}.validation_sampling.temprature=0.5", "did you mean 'temperature'?"),
    wrong(f"{SAMPLING}.max_token=5", "did you mean 'max_tokens'?"),
    wrong(f"{SAMPLING}.n=3", "is not a setting"),
    wrong(f"{SAMPLING}.temperature=-1", "at least 0"),
    wrong(f"{SAMPLING}.temperature=warm", "a finite number"),
    wrong(f"{SAMPLING}.temperature=nan", "a finite number"),
    wrong(f"{SAMPLING}.max_tokens=0", "at least 1"),
    wrong(f"{SAMPLING}.top_p=7", "at most 1"),
    wrong(f"{SAMPLING}.top_k=0", "mas.agents.solver.sampling.top_k"),
    wrong(f"{SAMPLING}.min_p=0.1", "sampling setting of rollout.name=transformers"),
    wrong(f"{SAMPLING}.repetition_penalty=1.2", "computes log-probs without penalties"),
    wrong(f"{SOLVER}.validation_sampling.presence_penalty=1", "sampling setting of rollout.name=transformers"),
    wrong(f"{EXTRA}.temprature=0.5", "did you mean 'temperature'?"),
    wrong(f"{EXTRA}.temperature=-1", "at least 0"),
    wrong(f"{EXTRA}.n=3", "mas.branch.k"),
    wrong(f"{EXTRA}.logprobs=5", "calculate_log_probs"),
    wrong(f"{EXTRA}.stream=true", "every request already has"),
    wrong(f"{SOLVER}.validation_sampling.extra.min_tokens=4", "sampling setting of rollout.name=transformers"),
    wrong(f"{SAMPLING}.temperature=0", "every reply to one prompt is then the same", warned=True),
    wrong(f"{VALIDATION}.n=8", "every validation session of a task is then the same", warned=True),
    wrong(f"{VALIDATION}.do_sample=true", "temperature 0 is greedy", warned=True),
    wrong(f"{SAMPLING}.seed=3", "every reply to one prompt is then the same", warned=True),
    wrong(f"{SAMPLING}.max_tokens=4096", "is the limit of every row", warned=True),
    wrong(f"{REMOTE} {EXTRA}.messages=[]", "every request already has"),
    wrong(f"{REMOTE} {EXTRA}.reasoning_efort=low", "did you mean 'reasoning_effort'?", warned=True),
)
