"""CAMEL with the variables of its environment alone."""

import json
import os

from camel.models import ModelFactory
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter


class Counter(BaseTokenCounter):  # tiktoken downloads its tables
    def count_tokens_from_messages(self, messages):
        return len(str(messages)) // 4

    def encode(self, text):
        return list(text.encode())

    def decode(self, token_ids):
        return bytes(token_ids).decode()


model = ModelFactory.create(ModelPlatformType.OPENAI, "gpt-4o", token_counter=Counter())
question = json.loads(os.environ["VERL_MAS_TASK"])["question"]
answer = model.run([{"role": "user", "content": question}]).choices[0].message.content
os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps({"answer": answer}).encode())
