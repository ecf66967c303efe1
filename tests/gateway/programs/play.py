"""Plays a program against OPENAI_BASE_URL, and writes what it returned to stdout: `python play.py FILE FUNCTION`.

The standard library alone, as it runs in the environments of the frameworks.
"""

import asyncio
import inspect
import json
import os
import runpy
import sys
from types import SimpleNamespace

task = SimpleNamespace(**json.loads(os.environ["VERL_MAS_TASK"]))
gateway = SimpleNamespace(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
outcome = runpy.run_path(sys.argv[1])[sys.argv[2]](task, gateway)
sys.stdout.write(json.dumps(asyncio.run(outcome) if inspect.isawaitable(outcome) else outcome) + "\n")
