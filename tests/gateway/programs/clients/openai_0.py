"""Use openai 0.28, configured only by environment variables."""

import json
import os

import openai

question = json.loads(os.environ["VERL_MAS_TASK"])["question"]
reply = openai.ChatCompletion.create(model="gpt-4", messages=[{"role": "user", "content": question}])
answer = reply["choices"][0]["message"]["content"]
os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps({"answer": answer}).encode())
