"""Measure the overhead of `verl-mas eval`: compare an evaluation with its requests sent to the engine alone.

    python -m benchmarks.eval_overhead --tasks 200 --sessions 16

Both run on a tiny model with random weights, in this process, with the same prompts, lengths and seeds. The two times
and their ratio are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from verl_mas.config.schema import AgentSpec
from verl_mas.results.serve.endpoints import EngineSettings
from verl_mas.results.serve.evaluate import Evaluation, Results, identity_of, read_rows
from verl_mas.results.serve.runtime import Runtime
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.workflow.team_file import FORMAT, TeamFile, TeamPolicy, TeamWorkflow


def main() -> None:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        team, data = _team(Path(folder), options), _data(Path(folder), options.tasks)
        rows = read_rows(data, "prompt")
        engine = EngineSettings(threads=options.threads)
        calls, evaluated = _evaluate(Runtime(team, engine), rows, data, options.sessions)
        alone = _alone(Runtime(team, engine), calls)
    print(f"{len(calls)} requests: eval {evaluated:.1f} s, engine alone {alone:.1f} s, ratio {evaluated / alone:.3f}")


def _evaluate(runtime: Runtime, rows: list, data: Path, sessions: int) -> tuple[list, float]:
    """Evaluate. Return the requests that reached the engine, and the seconds.

    Recording a request takes no measurable time.
    """
    calls: list = []
    [policy] = runtime.clients.values()
    generate = policy.client.generate

    async def noted(request_id, *, prompt_ids, sampling_params, **media):
        calls.append((request_id, prompt_ids, dict(sampling_params)))
        return await generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **media)

    policy.client.generate = noted
    identity = identity_of(runtime.folder, runtime.file, data, 0, {})
    results = Results.open(runtime.folder / "sessions.jsonl", identity, force=True)
    started = time.perf_counter()
    asyncio.run(Evaluation(runtime, rows, sessions, results).run(lambda record: None))
    return calls, time.perf_counter() - started


def _alone(runtime: Runtime, calls: list) -> float:
    [policy] = runtime.clients.values()

    async def all_of_them() -> None:
        server = policy.client.server
        await asyncio.gather(*[server.generate(prompt, params, name) for name, prompt, params in calls])

    started = time.perf_counter()
    asyncio.run(all_of_them())
    return time.perf_counter() - started


def _team(folder: Path, options: argparse.Namespace) -> Path:
    model = tiny_model(folder / "team" / "main", parameters=options.parameters)
    sampling = {"temperature": 1.0, "max_tokens": options.tokens, "ignore_eos": True}
    agents = {"solver": AgentSpec(sampling=sampling, validation_sampling=sampling)}
    policy = TeamPolicy(model=str(model), folder="main", dtype="float32", prompt_length=256, response_length=256)
    TeamFile(FORMAT, TeamWorkflow("single"), agents, {"main": policy}, step=1).write(folder / "team")
    return folder / "team"


def _data(folder: Path, tasks: int) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"What is {number} + {number}?"}],
            "data_source": "openai/gsm8k",
            "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
        }
        for number in range(tasks)
    ]
    path = folder / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
