"""The embedded engine, for machines where no other engine runs. This module imports neither torch nor verl."""

from verl_mas.engines.facts import EngineFacts, register_engine
from verl_mas.engines.transformers.request import Options, RequestSampling

register_engine(
    "transformers",
    replica="verl_mas.engines.transformers.replica.TransformersReplica",
    adapter="verl_mas.engines.transformers.adapter.ServerAdapter",
    facts=EngineFacts(
        package="transformers",
        sampling=RequestSampling.names,
        one_process=True,
        takes_adapters=False,
        many_adapters=True,
        resumes=True,
        check_options=Options.of,
    ),
)
