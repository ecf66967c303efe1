"""Turn a configuration of Dr. MAS or of PettingLLMs into a command; convert_config.yaml has what is known of them.

    python scripts/convert_config.py drmas KEY=VALUE ...                      # arguments of their verl.trainer.main_ppo
    python scripts/convert_config.py pettingllms CONFIG.yaml KEY=VALUE ...    # one of their pettingllms/config

The command goes to stdout, what is left out to stderr. Where one setting is not known, nothing is converted.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from verl_mas.config.merge import leaves

KNOWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SPECIFIC = "agent.agent_specific_parameters."
OF_AGENT = r"agent_policy_configs\.agent_configs\.\w+\."


class Settings:
    """Theirs, of which what is taken has been understood; and ours."""

    def __init__(self, theirs: Mapping[str, Any]):
        self.theirs, self.ours, self.refused = dict(theirs), dict[str, Any](), list[str]()

    def take(self, *patterns: str) -> dict[str, Any]:
        keys = [key for key in self.theirs if any(re.fullmatch(pattern, key) for pattern in patterns)]
        return {key: self.theirs.pop(key) for key in keys}

    def choice(self, key: str, default: object, known: Mapping[object, Any]) -> Any:
        """What one of their values is here."""
        value = self.theirs.pop(key, default)
        if value not in known:
            self.refused.append(f"{key}={value}: known: {', '.join(map(str, known))}")
        return known.get(value)

    def policies(self, policy_of: Mapping[str, str], overrides: Mapping[str, Mapping[str, Any]]) -> None:
        """The policy of each agent, and what each agent's policy has; what all have alike is said once."""
        for agent, policy in policy_of.items():
            mine, theirs = overrides[agent], overrides[next(one for one in policy_of if policy_of[one] == policy)]
            self.refused += (
                [f"{agent} of {policy}: {mine}, not {theirs}: agents of one model"] if mine != theirs else []
            )
        first, *others = overrides.values()
        alike = [key for key in first if all(own[key] == first[key] for own in others)]
        self.ours |= {f"actor_rollout_ref.{key}": first[key] for key in alike}
        if len(set(policy_of.values())) > 1:
            for agent, policy in policy_of.items():
                own = {f"overrides.{key}": value for key, value in overrides[agent].items() if key not in alike}
                self.ours |= {
                    f"mas.policies.{policy}.{key}": value for key, value in {"trainable": True, **own}.items()
                }
                self.ours[f"mas.agents.{agent}.policy"] = policy

    def command(self, start: str, known: Mapping[str, Any]) -> str:
        self.ours |= {known["renamed"][key]: self.theirs.pop(key) for key in known["renamed"] if key in self.theirs}
        for pattern, why in known["left_out"].items():
            if keys := self.take(pattern):
                sys.stderr.write(f"left out, {why}: {', '.join(keys)}\n")
        self.refused += [f"{key}={value}: no equal of it is known" for key, value in self.theirs.items()]
        if self.refused:
            sys.exit("\n  ".join(["not converted:", *self.refused]))
        words = [*start.split(), *(f"++{key}={in_hydra(value)}" for key, value in self.ours.items())]
        return " \\\n    ".join(["python -m verl.trainer.main_ppo", *map(shlex.quote, words)])


def in_hydra(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(in_hydra, value))}]"
    plain = isinstance(value, str) and re.fullmatch(r"[\w./-]+", value)
    return str(value) if plain else json.dumps(value)


def team_of(known: Mapping[str, Any], kind: str, *agents: list[str]) -> Mapping[str, Any]:
    team = known["teams"].get(kind)
    if team is None or any(set(names) != set(team["agents"]) for names in agents):
        sys.exit(f"not converted:\n  {kind} with the agents {agents[0]}: known: {known['teams']}")
    return team


def drmas(theirs: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    kind = theirs.get("agent.orchestra_type", "math")
    s = Settings({**known["defaults"], **known["defaults_of"].get(kind, {}), **theirs})
    ids, models, _ = (s.theirs.pop(f"agent.{key}", []) for key in ("agent_ids", "model_ids", "orchestra_type"))
    team = team_of(known, kind, ids)
    agents = [team["agents"][name] for name in ids]
    own = {key.removeprefix(SPECIFIC): values for key, values in s.take(re.escape(SPECIFIC) + ".*").items()}
    own |= {"model.path": models}
    if any(len(values) != len(agents) for values in own.values()):
        sys.exit(f"not converted:\n  {own}: a value per agent of {ids}")
    general = Settings({f"actor_rollout_ref.{key}": values for key, values in own.items()})
    s.take(*map(re.escape, general.take(*known["same"])))
    s.refused += [
        f"{SPECIFIC}{key.removeprefix('actor_rollout_ref.')}: no equal of it is known" for key in general.theirs
    ]
    shared = s.choice("agent.model_sharing", False, {True: True, False: False})
    by_model = [f"model_{sorted(set(models)).index(model)}" for model in models]
    s.policies(
        dict(zip(agents, by_model if shared else agents, strict=True)),
        {agent: {key: values[i] for key, values in own.items()} for i, agent in enumerate(agents)},
    )
    s.ours |= s.take(*known["same"])
    s.ours |= {"mas.reward.preset": "dr_mas", "mas.workflow.args.score": team["score"]}
    by_agent = s.choice("algorithm.group_by_agent_id", False, {True: "agent_grpo", False: "team_grpo"})
    s.ours["algorithm.adv_estimator"] = s.choice("algorithm.adv_estimator", "gae", {"grpo": by_agent})
    if by_agent == "team_grpo":
        s.ours["mas.advantage.session_mean"] = True
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


def pettingllms(theirs: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    s = Settings(theirs)
    kind, benchmark = s.theirs.pop("env.name", ""), theirs.get("env.benchmark", "")
    ids, names = list(s.take(OF_AGENT + "name").values()), list(s.take(OF_AGENT + "policy_name").values())
    order = s.theirs.pop("multi_agent_interaction.turn_order", ids)
    team = team_of(known, str(benchmark if kind == "stateful_env" else kind), ids, order)
    agents = [team["agents"][name] for name in ids]
    paths = dict(zip(*(s.take(rf"base_models\.\w+\.{key}").values() for key in ("name", "path")), strict=True))
    apart = s.choice("specialization", None, {"prompt": False, "full": True, "model": True})
    s.policies(
        {agent: agent if apart else "main" for agent in agents},
        {agent: {"model.path": paths[name]} for agent, name in zip(agents, names, strict=True)},
    )
    for part, where in (("train", ROLLOUT), ("val", f"{ROLLOUT}.val_kwargs")):
        of = {"enable_thinking": "data.apply_chat_template_kwargs.enable_thinking", "min_p": None}
        for key, ours in {**of, **{key: f"{where}.{key}" for key in ("temperature", "top_p", "top_k")}}.items():
            values = set(s.take(rf"{OF_AGENT}{part}_llm_config\.{key}").values())
            if len(values) > 1 or (ours is None and any(values)):
                s.refused.append(f"{part}_llm_config.{key}={values}: set mas.agents.<agent>.sampling by hand")
            elif ours:
                s.ours |= dict.fromkeys([ours], *values) if values else {}
    s.choice("rollout_mode", "tree", {"tree": None})
    if kind == "code_env":
        folder = s.choice("env.dataset", "", {"apps": "runs/apps", "code_contests": "runs/code_contests"})
        s.ours |= {
            f"data.{part}_files": f"{folder}/{name}.parquet"
            for part, name in (("train", "train"), ("val", "validation"))
        }
    for key, value in s.take(r"models\..*\.filter_ratio").items():
        s.refused += [f"{key}={value}: mas.filter drops whole tasks; add {key}=0 to train on all"] if value else []
    # Two optimiser steps as in the paper. Learning rate and the like are the recipe's, which are the paper's, too.
    s.ours[f"{ACTOR}.ppo_mini_batch_size"] = s.theirs.get("training.train_batch_size", 128) // 2
    lengths = {key: s.theirs.get(key, 0) for key in ("training.max_prompt_length", "training.max_response_length")}
    s.refused += [f"{key}: give it" for key, value in lengths.items() if not value]
    s.ours[f"{ROLLOUT}.max_model_len"] = sum(lengths.values())
    s.ours["trainer.default_local_dir"] = f"runs/{theirs.get('training.experiment_name', kind)}"
    return s.command(team["start"], known)


def main(kind: str, *words: str) -> None:
    tree = OmegaConf.create()
    if kind == "pettingllms":
        tree, words = OmegaConf.load(words[0]), words[1:]
        tree.pop("defaults", None)
    for given in OverridesParser.create().parse_overrides(list(words)):
        OmegaConf.update(tree, given.key_or_group, given.value(), force_add=True)
    try:
        theirs = {".".join(path): value for path, value in leaves(OmegaConf.to_container(tree, resolve=True))}
    except InterpolationKeyError as error:
        sys.exit(f"not converted:\n  {error.full_key}: {error.msg}: give it, as in `+lora_rank=0`")
    sys.stdout.write({"drmas": drmas, "pettingllms": pettingllms}[kind](theirs, KNOWN[kind]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
