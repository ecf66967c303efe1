"""Turn a script of Dr. MAS or a configuration of PettingLLMs into a command, by the rules of convert_config.yaml.

    python scripts/convert_config.py drmas SCRIPT.sh KEY=VALUE ...          # one of their examples; nothing is trained
    python scripts/convert_config.py drmas KEY=VALUE ...                    # arguments of their verl.trainer.main_ppo
    python scripts/convert_config.py pettingllms CONFIG.yaml KEY=VALUE ...  # one of their pettingllms/config

The command goes to stdout, and the list of skipped settings goes to stderr. If any setting has no known counterpart,
nothing is converted, and the exit code is 1.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from verl_mas.config.merge import leaves

KNOWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
SPECIFIC = "agent.agent_specific_parameters."
OF_AGENT = "agent_policy_configs.agent_configs"
# Section of foreign settings -> the section of our configuration for all agents, and the section for one agent.
SAMPLING = {
    "train_llm_config": (ROLLOUT, "sampling"),
    "val_llm_config": (f"{ROLLOUT}.val_kwargs", "validation_sampling"),
}
# Replaces `python` while a foreign script runs: writes its arguments to a file instead of running Python.
STAND_IN = '#!/bin/sh\nprintf "%s\\0" "$@" > "$ARGUMENTS"\n'


class Settings:
    """The foreign settings that are not converted yet, and the settings of verl-mas converted so far."""

    def __init__(self, theirs: Mapping[str, Any]):
        self.theirs, self.ours = dict(theirs), dict[str, Any]()
        self.notes, self.refused = list[str](), list[str]()

    def take(self, *patterns: str) -> dict[str, Any]:
        keys = [key for key in self.theirs if any(re.fullmatch(pattern, key) for pattern in patterns)]
        return {key: self.theirs.pop(key) for key in keys}

    def choice(self, key: str, default: object, known: Mapping[Any, Any]) -> Any:
        """Remove a foreign setting and return its counterpart in `known`. An unknown value refuses the conversion."""
        value = self.theirs.pop(key, default)
        if value not in known:
            self.refused.append(f"{key}={value}: known: {', '.join(map(str, known))}")
        return known.get(value)

    def policies(self, policy_of: Mapping[str, str], overrides: Mapping[str, Mapping[str, Any]], **kind: Any) -> None:
        """Set each agent's policy and its overrides. A value that all agents share is set once, for all policies.

        `kind` has the settings that every policy gets, for example `adapter_of`.
        """
        for agent, policy in policy_of.items():
            mine, theirs = overrides[agent], overrides[next(one for one in policy_of if policy_of[one] == policy)]
            self.refused += (
                [f"{agent} of {policy}: {mine}, not {theirs}: agents of one model"] if mine != theirs else []
            )
        first, *others = overrides.values()
        alike = [key for key in first if all(own[key] == first[key] for own in others)]
        self.ours |= {f"actor_rollout_ref.{key}": first[key] for key in alike}
        if len(set(policy_of.values())) > 1 or "adapter_of" in kind:
            for agent, policy in policy_of.items():
                own = {f"overrides.{key}": value for key, value in overrides[agent].items() if key not in alike}
                self.ours |= {
                    f"mas.policies.{policy}.{key}": value
                    for key, value in {**(kind or {"trainable": True}), **own}.items()
                }
                self.ours[f"mas.agents.{agent}.policy"] = policy

    def command(self, start: str, known: Mapping[str, Any]) -> str:
        self.ours |= {known["renamed"][key]: self.theirs.pop(key) for key in known["renamed"] if key in self.theirs}
        for pattern, why in known["left_out"].items():
            if keys := self.take(pattern):
                short = dict.fromkeys(re.sub(r"^models\.\w+\.ppo_trainer_config\.", "", key) for key in keys)
                self.notes.append(f"left out, {why}: {', '.join(short)}")
        self.refused += [f"{key}={value}: no counterpart is known" for key, value in self.theirs.items()]
        self.refused += [f"{key}={value}: give it" for key, value in self.ours.items() if "${" in str(value)]
        if self.refused:
            refuse(*self.refused)
        sys.stderr.writelines(f"{line}\n" for line in self.notes)
        words = [*start.split(), *(f"++{key}={in_hydra(value)}" for key, value in self.ours.items())]
        return " \\\n    ".join(["python -m verl.trainer.main_ppo", *map(shlex.quote, words)])


def refuse(*lines: str) -> NoReturn:
    sys.exit("\n  ".join(["not converted:", *lines]))


def in_hydra(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(in_hydra, value))}]"
    plain = isinstance(value, str) and re.fullmatch(r"[\w./-]+", value)
    return str(value) if plain else json.dumps(value)


def team_of(known: Mapping[str, Any], kind: str, agents: list[str]) -> Mapping[str, Any]:
    """Return the known team of this kind with exactly these agents. Exit with an error if there is no such team."""
    teams = known["teams"].get(kind, [])
    for team in teams:
        if set(agents) == set(team["agents"]):
            return team
    others = " or ".join(" and ".join(team["agents"]) for team in teams) or ", ".join(known["teams"])
    hint = known["hints"].get(kind, f"known: {others}")
    return refuse(f"{kind} of {' and '.join(agents) or 'no agent'}: no counterpart; {hint}")


def drmas(theirs: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    kind = theirs.get("agent.orchestra_type", "math")
    s = Settings({**known["defaults"], **known["defaults_of"].get(kind, {}), **theirs})
    ids, models, _ = (s.theirs.pop(f"agent.{key}", []) for key in ("agent_ids", "model_ids", "orchestra_type"))
    team = team_of(known, kind, ids)
    agents = [team["agents"][name] for name in ids]
    own = {key.removeprefix(SPECIFIC): values for key, values in s.take(re.escape(SPECIFIC) + ".*").items()}
    own |= {"model.path": models}
    if any(len(values) != len(agents) for values in own.values()):
        refuse(f"{own}: a value per agent of {ids}")
    general = Settings({f"actor_rollout_ref.{key}": values for key, values in own.items()})
    s.take(*map(re.escape, general.take(*known["same"])))
    s.refused += [
        f"{SPECIFIC}{key.removeprefix('actor_rollout_ref.')}: no counterpart is known" for key in general.theirs
    ]
    shared = s.choice("agent.model_sharing", False, {True: True, False: False})
    by_model = [f"model_{sorted(set(models)).index(model)}" for model in models]
    s.policies(
        dict(zip(agents, by_model if shared else agents, strict=True)),
        {agent: {key: values[i] for key, values in own.items()} for i, agent in enumerate(agents)},
    )
    s.ours |= s.take(*known["same"])
    s.ours |= {"mas.reward.preset": "dr_mas", "mas.workflow.args.score": team["score"]}
    advantages(s, known)
    updates = s.theirs.pop(f"{ACTOR}.ppo_mini_update_num", 10)
    s.ours["mas.updates_per_step"] = s.choice(f"{ACTOR}.use_adaptive_ppo_mini_batch_size", False, {True: updates})
    s.ours[f"{ACTOR}.ppo_mini_batch_size"] = s.ours.get("data.train_batch_size")
    penalty = s.theirs.pop(f"{ACTOR}.invalid_action_penalty_coef", 0.1)
    penalty = s.choice(f"{ACTOR}.use_invalid_action_penalty", True, {True: penalty, False: 0.0})
    cut = s.choice("data.truncation", "error", {"error": "error", "middle": "middle", "left": "drop_oldest"})
    for agent in agents:
        s.ours |= {f"mas.agents.{agent}.format_penalty": penalty, f"mas.agents.{agent}.truncation": cut}
    history = s.theirs.pop("env.history_length", 0)
    if kind == "search" and history < s.theirs["env.max_steps"]:
        s.refused.append(f"env.history_length={history}: prompts have the evidence of all turns")
    return s.command(f"+mas={team['team']}", known)


def advantages(s: Settings, known: Mapping[str, Any]) -> None:
    """Convert the advantage estimator with its options, and DAPO's filter of groups."""
    by_agent = s.theirs.pop("algorithm.group_by_agent_id", False)
    name = s.theirs.pop("algorithm.adv_estimator", "gae")
    if by_agent not in known["estimators"].get(name, ()):
        pairs = [f"{one} with {by}" for one, known_by in known["estimators"].items() for by in known_by]
        refuse(f"algorithm.adv_estimator={name} with group_by_agent_id={by_agent}: known: {', '.join(pairs)}")
    s.ours |= known["estimators"][name][by_agent]
    if name == "gigpo":
        s.ours["mas.advantage.step_weight"] = s.theirs.pop("algorithm.gigpo.step_advantage_w", 1.0)
        s.ours["mas.advantage.gamma"] = s.theirs.pop("algorithm.gamma", 1.0)
        scales = {"mean_norm": "none", "mean_std_norm": "std"}
        s.ours["mas.advantage.scale"] = s.choice("algorithm.gigpo.mode", "mean_norm", scales)
    rounds = s.theirs.pop("algorithm.filter_groups.max_num_gen_batches", 10)
    if s.choice("algorithm.filter_groups.enable", False, {True: True, False: False}):
        settings = {"drop": "uniform", "by": "team", "refill": True, "max_rounds": rounds}
        s.ours |= {f"mas.filter.{key}": value for key, value in settings.items()}


def pettingllms(theirs: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    s = Settings(theirs)
    kind, benchmark = s.theirs.pop("env.name", ""), theirs.get("env.benchmark", "")
    configs = {key: s.theirs.pop(key) for key in theirs if re.fullmatch(rf"{OF_AGENT}\.\w+\.\w*name", key)}
    place = {name: key.split(".")[2] for key, name in configs.items() if key.endswith(".name")}
    order = list(dict.fromkeys(s.theirs.pop("multi_agent_interaction.turn_order", place)))
    if theirs.get("workflow_type", "turn") != "turn":
        refuse(f"workflow_type={theirs['workflow_type']}: no counterpart; known: turn")
    team = team_of(known, str(benchmark if kind == "stateful_env" else kind), order)
    if not any(key.startswith("training.") for key in theirs):
        refuse("training: no such section, which their trainer reads: a file of an older layout")
    agents = {name: team["agents"][name] for name in order}
    s.take(*(rf"{OF_AGENT}\.{place[name]}\..*" for name in place if name not in agents))
    filters(s)
    model_policies(s, agents, {name: configs[f"{OF_AGENT}.{place[name]}.policy_name"] for name in agents}, known)
    sampling(s, {agents[name]: place[name] for name in agents})
    for name in s.theirs.pop("multi_agent_interaction.agent_untrained", []):
        s.ours[f"mas.agents.{agents[name]}.trainable"] = False
    s.choice("rollout_mode", "tree", {"tree": None})
    if kind == "code_env":
        folder = s.choice("env.dataset", "", {"apps": "runs/apps", "code_contests": "runs/code_contests"})
        s.ours |= {
            f"data.{part}_files": f"{folder}/{name}.parquet"
            for part, name in (("train", "train"), ("val", "validation"))
        }
    # Half of a batch: two optimiser steps per step, as in the paper.
    s.ours[f"{ACTOR}.ppo_mini_batch_size"] = s.theirs.get("training.train_batch_size", 128) // 2
    lengths = {key: s.theirs.get(key, 0) for key in ("training.max_prompt_length", "training.max_response_length")}
    s.refused += [f"{key}: give it" for key, value in lengths.items() if not value]
    s.ours[f"{ROLLOUT}.max_model_len"] = sum(lengths.values())
    s.ours["trainer.default_local_dir"] = f"runs/{theirs.get('training.experiment_name', kind)}"
    return s.command(team["start"], known)


def model_policies(s: Settings, agents: Mapping[str, str], names: Mapping[str, str], known: Mapping[str, Any]) -> None:
    """Convert the policies: one policy for all agents, or one policy or LoRA adapter per agent.

    A LoRA rank applies to every policy, as in PettingLLMs' trainer.
    """
    models = dict(zip(*(s.take(rf"models\.\w+\.{key}").values() for key in ("name", "path")), strict=True))
    s.take(r"base_models\..*")
    for name in set(names.values()) - set(models):
        s.refused.append(f"policy_name={name}: not in models: {', '.join(models)}")
    kind = s.choice("specialization", None, {"prompt": None, "full": {}, "model": {}, "lora": {"adapter_of": "main"}})
    s.policies(
        {agent: "main" if kind is None else agent for agent in agents.values()},
        {agent: {"model.path": models.get(names[name])} for name, agent in agents.items()},
        **(kind or {}),
    )
    rank, alpha = s.theirs.pop("lora_rank", 0), s.theirs.pop("lora_alpha", 16)
    if rank:
        s.ours |= {f"{MODEL}.lora_rank": rank, f"{MODEL}.lora_alpha": alpha, **known["with_lora"]}
    for placeholder in {path for path in models.values() if " " in path}:
        s.notes.append(f"give the model, as in base_models.policy_0.path=Qwen/Qwen3-1.7B; theirs is {placeholder!r}")


def sampling(s: Settings, place: Mapping[str, str]) -> None:
    """Convert sampling and chat templates. A value is set once if all agents share it, and per agent otherwise."""
    for part, (everywhere, of_agent) in SAMPLING.items():
        values = {agent: s.take(rf"{OF_AGENT}\.{at}\.{part}\..*") for agent, at in place.items()}
        by_key = {agent: {key.rpartition(".")[2]: value for key, value in values[agent].items()} for agent in values}
        for key in dict.fromkeys(key for of in by_key.values() for key in of):
            each = {agent: by_key[agent][key] for agent in by_key if key in by_key[agent]}
            alike = len(each) == len(place) and len(set(each.values())) == 1
            if key == "enable_thinking" and alike:
                s.ours[f"data.apply_chat_template_kwargs.{key}"] = next(iter(each.values()))
            elif key == "enable_thinking":
                s.ours |= {f"mas.agents.{agent}.chat_template_kwargs.{key}": each[agent] for agent in each}
            elif key in ("temperature", "top_p", "top_k") and alike:
                s.ours[f"{everywhere}.{key}"] = next(iter(each.values()))
            elif key != "min_p" or any(each.values()):
                s.ours |= {f"mas.agents.{agent}.{of_agent}.{key}": each[agent] for agent in each}


def filters(s: Settings) -> None:
    for key, ratio in s.take(r"models\..*\.filter_ratio").items():
        (method,) = s.take(re.escape(key.replace("ratio", "method"))).values() or ("mean",)
        if ratio and method != "dapo":
            s.notes.append(f"left out, here every group of candidates is trained on: {key}={ratio} by {method}")


def arguments_of(script: str, *arguments: str) -> list[str]:
    """Return the arguments that a shell script passes to `python3 -m MODULE`, without running the module."""
    with TemporaryDirectory() as folder:
        written = Path(folder, "arguments")
        for name in ("python", "python3"):
            Path(folder, name).write_text(STAND_IN)
            Path(folder, name).chmod(0o755)
        env = {**os.environ, "ARGUMENTS": str(written), "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", script, *arguments], env=env, capture_output=True, text=True, check=False)
        if not written.exists():
            refuse(f"{script}: it does not run python3: {done.stderr.strip()[-300:]}")
        return written.read_text().split("\0")[2:-1]


def tree_of(path: str) -> DictConfig:
    tree = OmegaConf.load(path)
    if not isinstance(tree, DictConfig) or not tree:
        refuse(f"{path}: the file is empty")
    tree.pop("defaults", None)
    return tree


def settings_of(tree: DictConfig) -> Iterator[tuple[str, Any]]:
    """Yield the path and the resolved value of every setting. An interpolation of a missing key stays as it is."""
    for path, value in leaves(OmegaConf.to_container(tree)):
        try:
            yield ".".join(path), OmegaConf.select(tree, ".".join(path)) if isinstance(value, str) else value
        except InterpolationKeyError:
            yield ".".join(path), value


def main(kind: str, *words: str) -> None:
    tree = OmegaConf.create()
    if kind == "pettingllms":
        tree, words = tree_of(words[0]), words[1:]
    elif words and words[0].endswith(".sh"):
        own = [word for word in words[1:] if "=" in word]
        words = (*arguments_of(words[0], *(word for word in words[1:] if "=" not in word)), *own)
    for given in OverridesParser.create().parse_overrides(list(words)):
        OmegaConf.update(tree, given.key_or_group, given.value(), force_add=True)
    theirs = dict(settings_of(tree))
    sys.stdout.write({"drmas": drmas, "pettingllms": pettingllms}[kind](theirs, KNOWN[kind]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
