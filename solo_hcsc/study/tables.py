"""The rows of the paper's ablation and sensitivity tables, as settings of HCSC; needs no torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.options import options_in

PAPER = (3000, 2000, 1000)  # the prototypes of the paper's own row
Rows = dict[str, dict[str, Any]]


def _without(*parts: str) -> dict[str, Any]:
    """Return settings that switch parts of HCSC off."""
    return dict.fromkeys(parts, False)


NO_SELECTION = _without("instance_selection", "prototype_selection")
NO_TREE = _without("instance_selection", "prototype_loss", "prototype_selection")


def components(_: Sequence[int]) -> Rows:
    """Return tab:ablation. HP: hierarchical prototypes, IL, PL: instance and prototype loss, IS, PS: selections."""
    return {
        "IL, PL (PCL)": {"hierarchy": False, **NO_SELECTION},
        "HP, IL, PL": NO_SELECTION,
        "HP, IL, PL, PS": _without("instance_selection"),
        "HP, IL, PL, IS": _without("prototype_selection"),
        "HP, IL, PL, IS, PS (HCSC)": {},
        "HP, PL, PS": {**_without("instance_loss", "instance_selection"), "proto_warmup_epochs": 0},
        "HP, IL, IS": _without("prototype_loss", "prototype_selection"),
        "IL": _without("instance_selection", "prototype_loss"),
    }


def levels(tree: Sequence[int]) -> Rows:
    """Return tab:sensitivity, first part: more hierarchies."""
    bottom = tree[0]
    rows = [(bottom,), (2 * bottom,), *(tree[:count] for count in range(2, len(tree) + 1))]
    return _trees([*rows, (*tree, tree[-1] // 2)] if tree[-1] > 1 else rows)


def prototypes(tree: Sequence[int]) -> Rows:
    """Return tab:sensitivity, second part: more prototypes, in the paper's proportions to its own row."""
    rows = [(1000, 500, 200), PAPER, (10000, 5000, 1000), (30000, 10000, 1000)]
    scaled = [[max(1, round(count * tree[0] / PAPER[0])) for count in row] for row in rows]
    scaled[1] = list(tree)
    return _trees(scaled)


def choices(_: Sequence[int]) -> Rows:
    """Return each choice of preset `recommended` taken back; docs/presets.md says why it is one."""
    return {
        "recommended": {},
        "prototype loss at full weight": {"proto_weight": 1.0, "proto_ramp_epochs": 0},
        "no prototype loss": _without("prototype_loss", "prototype_selection"),
        "no selection": NO_SELECTION,
        "selection and prototypes from the start": {"proto_warmup_epochs": 0},
        "negatives of older batches only": {"batch_negatives": False},
        "query's cluster by Eq. 3": {"query_cluster": "similarity"},
        "query's cluster by cosine": {"query_cluster": "cosine"},
        "temperatures as Eq. 3 has them": {"temperature_scaling": "none"},
        "clusters of centre crops": {"clustered_features": "images"},
        "plain InfoNCE": _without("instance_selection", "prototype_loss"),
    }


def tree(_: Sequence[int]) -> Rows:
    """Return the pair that shows what the tree contributes: same seeds, weights and crops without and with it."""
    return {"without the tree": NO_TREE, "with the tree": {}}


def ceiling(_: Sequence[int]) -> Rows:
    """Return the same pair, and a tree of the true labels, which bounds what a better tree could contribute."""
    return {**tree(_), "true labels as the tree (oracle)": {"oracle_labels": True}}


def images(_: Sequence[int]) -> Rows:
    """Return the pair that shows what faster images do to accuracy: same seeds, weights and draws."""
    return {name: {"image_backend": name} for name in ("pil", "fast")}


TABLES: dict[str, Callable[[Sequence[int]], Rows]] = {
    "components": components,
    "levels": levels,
    "prototypes": prototypes,
    "choices": choices,
    "tree": tree,
    "ceiling": ceiling,
    "images": images,
}


def reference_of(
    table: str, rows: Rows, base: Mapping[str, Any], chosen: Sequence[int] | None, against: int | None
) -> str | None:
    """Choose the reference row: as asked, the run without the tree, or the one with the settings as given.

    Args:
        table: its name.
        rows: all of the table.
        base: the settings that all rows share.
        chosen: numbers of the rows that are run, from 1; all of None.
        against: the number of the reference row, if it is asked for.
    """
    if against is not None:
        check_row("against", against, table, rows)
        if chosen and against not in chosen:
            raise ArgumentError(f"`against` {against}: is not among `rows` {' '.join(map(str, chosen))}; add it")
        return list(rows)[against - 1]
    if table in ("tree", "ceiling", "images"):
        return next(iter(rows))
    options = options_in(base)
    return next((name for name, more in rows.items() if options_in({**base, **more}) == options), None)


def chosen_rows(table: str, rows: Rows, chosen: Sequence[int] | None) -> Rows:
    """Return the rows of a table that are wanted."""
    wanted = chosen or range(1, len(rows) + 1)
    for number in wanted:
        check_row("rows", number, table, rows)
    return {name: more for number, (name, more) in enumerate(rows.items(), 1) if number in wanted}


def refuse_labels(names: Iterable[str]) -> None:
    """Refuse `oracle_labels`, which only a row of a table may have."""
    if "oracle_labels" in names:
        raise ArgumentError("`oracle_labels`: is a row of `table` ceiling, which says so; leave it out")


def check_row(argument: str, number: int, table: str, rows: Rows) -> None:
    """Refuse the number of a row that a table does not have."""
    if not 1 <= number <= len(rows):
        raise ArgumentError(f"`{argument}` {number}: table {table} has rows 1 to {len(rows)}")


def _trees(rows: Sequence[Sequence[int]]) -> Rows:
    return {"-".join(map(str, row)): {"num_prototypes": list(row)} for row in rows}
