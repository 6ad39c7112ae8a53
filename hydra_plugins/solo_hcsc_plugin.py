"""Hydra imports this in every program that uses it; only in solo-learn's does it do anything."""

import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from solo_hcsc.solo_version import HYDRA, installed_solo


class HCSCSearchPath(SearchPathPlugin):
    """Registers HCSC, and lets its configs be found by name beside those of the user's `--config-path`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        found = installed_solo() if "solo.methods" in sys.modules else None
        if found is None or found.version != HYDRA:
            return
        from solo_hcsc.solo106.job import config_folders, script_kind, watch_jobs  # takes torch
        from solo_hcsc.solo106.register import register

        register()
        watch_jobs()
        main = next((item.path for item in search_path.get_path() if item.provider == "main"), "")
        for folder in config_folders(script_kind(), main.removeprefix("file://")):
            search_path.append("solo_hcsc", str(folder))
