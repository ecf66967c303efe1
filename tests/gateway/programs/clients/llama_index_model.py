"""Use LlamaIndex, configured only by environment variables."""

import json
import os

from llama_index.llms.openai import OpenAI

answer = str(OpenAI(model="gpt-4o").complete(json.loads(os.environ["VERL_MAS_TASK"])["question"]))
os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps({"answer": answer}).encode())
