"""A coding harness as an agent: `python harness_team.py opencode|codex|claude`, with the harness on the PATH.

The planner writes a plan. The programmer, which is the harness, carries it out with its own tools in a folder of the
session. Each function below returns the command and the environment variables of one harness. Its settings make the
harness send requests to the gateway only, and with short prompts: without `prompt`, `model_instructions_file` or
`--bare`, a harness sends its own prompt.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
INSTRUCTIONS = "You are a coding agent. Use your tools, then reply in one sentence."
# This process has the ground truth, so commands of the model must not see this process. With `unshare`, they see only
# the processes of the harness.
APART = ("unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc")
# Variables that point to a temporary folder, so that the harness neither reads nor writes your own folders.
FOLDERS = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
# Each harness ends with status 1 when a reply is cut, or a limit of the session or of a row is reached.
CUT = re.compile("max_output_tokens|output token maximum|context window|limit: |too long|max turns")


def opencode(home):
    settings = {
        "provider": {
            "team": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": BASE, "apiKey": KEY},
                "models": {"programmer": {"limit": {"context": 32768, "output": 2048}}},
            }
        },
        "model": "team/programmer",
        "small_model": "team/programmer",
        "agent": {"build": {"prompt": INSTRUCTIONS}},
        "permission": {"*": "deny", "bash": "allow", "edit": "allow", "read": "allow"},
        "compaction": {"auto": False, "prune": False},
        "autoupdate": False,
        "share": "disabled",
    }
    env = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "npm_config_offline": "true",  # otherwise each start with a new home would install a package
    }
    # Without --title, opencode asks the model for a title.
    return ["opencode", "run", "--title", "task"], env


def codex(home):
    (home / "instructions.md").write_text(INSTRUCTIONS)
    settings = {
        "model": "programmer",
        "model_provider": "team",
        "model_providers.team.name": "team",
        "model_providers.team.base_url": BASE,
        "model_providers.team.env_key": "OPENAI_API_KEY",
        "model_providers.team.stream_max_retries": 0,
        "model_instructions_file": str(home / "instructions.md"),
        "include_permissions_instructions": False,
        "skills.include_instructions": False,
        "features.goals": False,
        "features.multi_agent": False,
        "features.plugins": False,
        "features.view_image": False,
        "web_search": "disabled",
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
    }
    options = [word for name, value in settings.items() for word in ("--config", f"{name}={json.dumps(value)}")]
    command = ["codex", "exec", "--strict-config", "--skip-git-repo-check", "--sandbox", "workspace-write", *options]
    return [*command, "-"], {"CODEX_HOME": str(home)}


def claude(home):
    tools = "Bash,Edit,Read"
    env = {
        "ANTHROPIC_MODEL": "programmer",
        "CLAUDE_CONFIG_DIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "DISABLE_COMPACT": "1",
    }
    return ["claude", "--print", "--bare", "--max-turns", "20", "--tools", tools, "--allowedTools", tools], env


def ask(agent, text):
    body = json.dumps({"model": agent, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{BASE}/chat/completions", body, headers)) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def team(task, harness, home):
    work = home / "work"
    work.mkdir()
    (work / "question.txt").write_text(task["question"])
    try:
        plan = ask("planner", f"Say in one sentence how a shell answers this: {task['question']}")
    except urllib.error.HTTPError:  # a tolerated limit; any other fault fails the session, whatever this returns
        return 0.0
    command, env = harness(home)
    shared = {name: value for name, value in os.environ.items() if name != "VERL_MAS_TASK"}
    done = subprocess.run(
        [*APART, *command],
        input=f"Answer the question in question.txt: write the answer to answer.txt. A plan: {plan}",
        cwd=work,
        env={**shared, **dict.fromkeys(FOLDERS, str(home)), **env},
        capture_output=True,
        text=True,
    )
    printed = f"{done.stdout}{done.stderr}"
    if done.returncode and not CUT.search(printed):
        sys.exit(f"{command[0]} ended with status {done.returncode}: {printed[-2000:]}")
    answer = work / "answer.txt"
    return float(answer.is_file() and answer.read_text(errors="replace").strip() == task["ground_truth"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        reward = team(json.load(sys.stdin), globals()[sys.argv[1]], Path(folder))
    os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps({"reward": reward}).encode())
