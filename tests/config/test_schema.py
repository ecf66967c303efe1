"""Classes of the `mas:` block refuse values that contradict each other."""

import pytest

from verl_mas.config import load
from verl_mas.errors import InvalidInput

REMOTE = {"base_url": "http://localhost:8000/v1", "model": "m"}


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"snapshot": {"of": "a", "every": 2}, "remote": REMOTE}, "a policy with snapshot and remote"),
        ({"adapter_of": "base", "snapshot": {"of": "a", "every": 2}}, "a policy with snapshot and adapter_of"),
        ({"remote": REMOTE, "overrides": {"model": {"path": "x"}}}, "a remote policy with overrides"),
    ],
)
def test_a_policy_has_one_source_of_weights(policy, says):
    with pytest.raises(InvalidInput, match=says):
        load({"policies": {"p": policy}})
