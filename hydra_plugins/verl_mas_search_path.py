"""Puts config groups (`+mas=...`, `+platform=...`) on the search path of every Hydra program: our groups and those of
other packages. `verl_mas.config.hydra` lists the same packages, but importing it would slow down each Hydra program.
"""

from importlib.metadata import entry_points

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import MISSING, OmegaConf

GROUP, SCHEMA = "mas", "schema"


class VerlMasSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        added = sorted(entry_points(group="verl_mas.hydra"), key=lambda point: point.name)
        for package in ("verl_mas.config.hydra", *(point.value for point in added)):
            search_path.append(provider="verl-mas", path=f"pkg://{package}")
        # Files come first, so a file `mas/<workflow>.yaml` replaces the configuration that is made from the class.
        search_path.append(provider="verl-mas", path=f"{WorkflowTeams.scheme()}://verl_mas.workflows")


class WorkflowTeams(ConfigSource):
    """Makes `+mas=<workflow>` for each registered workflow, and `mas/schema` with the default of every setting."""

    @staticmethod
    def scheme() -> str:
        return "verl-mas"

    def load_config(self, config_path: str) -> ConfigResult:
        from verl_mas.config.describe import defaults
        from verl_mas.config.schema import MasConfig, WorkflowSpec
        from verl_mas.workflow.base import team_file

        name = config_path.rpartition("/")[2]
        # A command must name a workflow, although a run without a team has one by default.
        workflow = defaults(WorkflowSpec) | {"name": MISSING}
        content = {GROUP: defaults(MasConfig) | {"workflow": workflow}} if name == SCHEMA else team_file(name)
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": "_global_"})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path == GROUP

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.rpartition("/")
        return group == GROUP and (name == SCHEMA or name in self.list(GROUP, None))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        from verl_mas.workflow.base import WORKFLOWS

        return WORKFLOWS.names()
