"""The floor plan: which room imports what, and where an import may wait until it is needed."""

import ast
import re
from pathlib import Path

import pytest
from tiny import ROOT

PACKAGE = ROOT / "solo_hcsc"
# Packages that are large or optional: a function may import them when it is called.
LAZY = (
    *("matplotlib", "umap", "wandb", "nvidia", "sklearn", "threadpoolctl", "faiss", "onnx", "pycocotools", "optuna"),
    *("huggingface_hub", "mlflow"),
    *("solo_hcsc.solo102.dali", "solo_hcsc.solo102.repairs.umap", "solo.data", "pandas", "pyarrow"),
    *("solo_hcsc.solo102.fast_steps", "solo_hcsc.data.fast_views"),  # which need OpenCV
    "solo_hcsc.data.hugging_face",  # which needs datasets
    *("solo_hcsc.runs.methods", "solo_hcsc.runs.solo_learn"),  # which need solo-learn
)


def lazy_imports(file: Path) -> list[str]:
    """What functions of a module import, by its dotted name."""
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    found = []
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{name.name}" for name in node.names]
            found += whole if node.module == "solo_hcsc.solo102" else [node.module or ""]
    return found


ROOMS = "hcsc trees data encoders methods solo102 solo106 runs training evaluation study report".split()


@pytest.mark.parametrize("room", ROOMS)
def test_only_large_optional_packages_are_imported_late(room):
    late = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in (PACKAGE / room).rglob("*.py")
        for name in lazy_imports(file)
        if not name.startswith(LAZY)
    }
    assert late == set()


def test_no_module_imports_solo_outside_its_two_rooms():
    def imports_solo(file: Path) -> bool:
        nodes = ast.walk(ast.parse(file.read_text()))
        names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
        names += [
            node.module or "" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        return any(name.split(".")[0] == "solo" for name in names)

    rooms = {PACKAGE / "solo102", PACKAGE / "solo106"}
    files = [file for file in PACKAGE.rglob("*.py") if not rooms & set(file.parents)]
    assert [file for file in files if imports_solo(file)] == []


def test_flags_are_never_changed_after_parsing():
    """`flags.x = ...`, `args.x = ...` and setattr on them; argparse's own actions set what they parse."""
    changed = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AugAssign)
                else []
            )
            changed += [
                f"{file.relative_to(PACKAGE)}:{node.lineno}"
                for target in targets
                if isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id in ("flags", "args", "settings")
            ]
    assert changed == []


def flags_in(file: Path) -> list[str]:
    """The strings of a module that name a flag of the command line."""
    nodes = ast.walk(ast.parse(file.read_text()))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in texts if re.search(r"(?<![\w-])--[a-zA-Z]", text) and "pip install" not in text]


def test_only_the_command_line_knows_a_flag():
    above = {PACKAGE / "cli"}
    files = [file for file in PACKAGE.rglob("*.py") if not above & set(file.parents) and file.name != "__main__.py"]
    found = {f"{file.relative_to(PACKAGE)}: {text[:60]}" for file in files for text in flags_in(file)}
    assert found == set()


NO_VERB = re.compile(
    r"(An?|The|This|Those|These|What|Which|Whether|Where|When|Who|How|Of|From|By|For|In|On|At|Per|Without|With|All|Every|"
    r"Each|One|None|True|False|Eq|Nothing|Not)\b|[^A-Z]|[A-Z][\w-]*(?<!s)s\b"  # nor the third person
)


def test_docstrings_of_functions_start_with_a_verb():
    """Those of repairs say what is broken."""
    files = [file for file in PACKAGE.rglob("*.py") if "repairs" not in str(file)]
    found = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            said = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if said and NO_VERB.match(said):
                found.append(f"{file.relative_to(PACKAGE)}:{node.lineno}: {said.splitlines()[0]}")
    assert found == []


def test_commands_are_thin():
    files = (PACKAGE / "cli" / "commands").glob("[!_]*.py")
    assert {file.name: lines for file in files if (lines := len(file.read_text().splitlines())) > 80} == {}
