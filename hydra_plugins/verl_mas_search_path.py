"""Puts config groups (`+mas=...`, `+platform=...`) on the search path of any Hydra program: ours, and those of other
packages, as `verl_mas.config.hydra` lists them. That is not imported here: it would slow down every Hydra program.
"""

from importlib.metadata import entry_points

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class VerlMasSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        added = sorted(entry_points(group="verl_mas.hydra"), key=lambda point: point.name)
        for package in ("verl_mas.config.hydra", *(point.value for point in added)):
            search_path.append(provider="verl-mas", path=f"pkg://{package}")
