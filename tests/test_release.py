"""The files of a release agree with each other: versions, Pythons, the pinned solo-learn, extras."""

import re
from configparser import ConfigParser

import pytest
import yaml
from tiny import ROOT

import solo_hcsc

SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
WORKFLOWS = {file.name: yaml.safe_load(file.read_text()) for file in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS = WORKFLOWS["ci.yml"]["jobs"]


def test_citation_and_changelog_have_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == solo_hcsc.__version__
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest.groups() == (solo_hcsc.__version__, str(citation["date-released"]))
    assert f"version = {{{solo_hcsc.__version__}}}" in (ROOT / "README.md").read_text()


def test_readme_is_read_in_one_go():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_tests_run_on_every_python_that_is_declared():
    declared = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
    assert JOBS["test"]["strategy"]["matrix"]["python"] == declared
    assert SETUP["options"]["python_requires"] == f">={declared[0]}"
    setups = [step["with"]["python-version"] for step in JOBS["oldest"]["steps"] if "setup-python" in str(step)]
    assert setups == [declared[0]]


def test_real_checkout_is_the_commit_that_the_documentation_names():
    (pinned,) = [step["with"]["ref"] for step in JOBS["checkout"]["steps"] if "ref" in step.get("with", {})]
    named = re.search(r"commit `(\w+)`", (ROOT / "docs" / "checkout.md").read_text())[1]
    assert re.fullmatch(r"[0-9a-f]{40}", pinned)
    assert pinned.startswith(named)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_runs_scripts_that_are_there(name):
    runs = [step["run"] for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"] if "run" in step]
    scripts = {script for run in runs for script in re.findall(r"scripts/\S+\.sh", run)}
    assert all((ROOT / script).is_file() for script in scripts)
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}  # what needs more asks for it in its job


def test_every_extra_has_its_oldest_versions():
    """But for development's tools, and what is there for one platform only."""
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "tests" / "oldest.txt").read_text().splitlines()}
    extras = SETUP["options.extras_require"]
    free = {"gpu", "dali", "dali-cuda120", "dev", "docs", "umap"}
    asked = {
        re.split(r"[<>=\[]", line)[0].lower()
        for name, lines in extras.items()
        for line in lines.split()
        if name not in free and not line.startswith(("solo_hcsc", "#"))
    }
    assert asked - pinned == set()
