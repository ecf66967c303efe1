"""Model folders of which a file is missing, cut or of another kind."""

from __future__ import annotations

import json

from wrong_configs.case import wrong
from wrong_configs.files import model, safetensors

MODEL = "actor_rollout_ref.model.path={folder}/model"
INDEX = json.dumps({"weight_map": {"w": "model-00001-of-00002.safetensors"}})
CUT = "config.json is not a JSON object"

CASES = (
    wrong(MODEL, CUT, prepare=model(config_json="not JSON")),
    wrong(MODEL, CUT, prepare=model(config_json="[]")),
    wrong(MODEL, CUT, prepare=model(config_json="")),
    wrong(MODEL, "tokenizer_config.json is not a JSON object", prepare=model(tokenizer_config_json="{")),
    wrong(MODEL, "tokenizer.json is not a JSON object", prepare=model(tokenizer_json='{"model": ')),
    wrong(
        MODEL,
        "tokenizer.json is not a JSON object: it is cut",
        prepare=model(tokenizer_json='{"vocab": "' + "a" * (3 << 20)),
    ),
    wrong(MODEL, "line 1 of the template", prepare=model(tokenizer_config_json='{"chat_template": "{% if %}"}')),
    wrong(
        MODEL,
        "only assistants",
        prepare=model(tokenizer_config_json=json.dumps({"chat_template": "{{ raise_exception('only assistants') }}"})),
    ),
    wrong(MODEL, "its header says", prepare=model(model_safetensors=safetensors(2))),
    wrong(MODEL, "-00001-of-00002.safetensors is missing", prepare=model(model_safetensors_index_json=INDEX)),
    wrong(MODEL, "index.json is not a JSON object", prepare=model(model_safetensors_index_json="{")),
    wrong("actor_rollout_ref.model.path=owner/not_here", "not in the Hugging Face cache", warned=True),
    wrong("actor_rollout_ref.model.path=hdfs://cluster/model", "not checked", warned=True),
)
