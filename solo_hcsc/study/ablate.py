"""Ablate HCSC on one's own images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.options import options_in
from solo_hcsc.study.asked import Evaluations, refuse_repeated, refuse_set_here, settings_of_data
from solo_hcsc.study.job import plain
from solo_hcsc.study.planning import Request, checked, shared_plan
from solo_hcsc.study.record import Comparison
from solo_hcsc.study.study import Plan, Study
from solo_hcsc.study.tables import TABLES, chosen_rows, reference_of, refuse_labels
from solo_hcsc.typed import typed


@typed
def ablate(
    table: str,
    data: str | Path | None = None,
    *,
    rows: Sequence[int] | None = None,
    against: int | None = None,
    seeds: Sequence[int] = range(3),
    out: str | Path | None = None,
    evaluations: Evaluations = ("knn", "linear", "clustering"),
    test_dir: str | Path | None = None,
    command: str | None = None,
    **settings: Any,
) -> Comparison:
    """Pretrain HCSC in the forms of one of the paper's tables, evaluate each run, and return all figures.

    Args:
        table: `components`, `levels`, `prototypes`, `choices`, `tree`, `ceiling` or `images`.
        data: a folder of images or the name of a data set.
        rows: numbers of the rows to run, from 1; all if not given.
        against: number of the row that the others are compared with.
        out: folder of the runs and of comparison.json; trained_models/ablate/TABLE if not given.
        **settings: of pretraining, for every row; all else is as in `compare`.

    Returns:
        A `Comparison`, whose `reference` is the row that the others are compared with.

    Example:
        >>> ablate("tree", "photos", max_epochs=50).to_pandas()  # doctest: +SKIP
    """
    if table not in TABLES:
        raise ArgumentError(f"`table` {table}: unknown; choose from {', '.join(TABLES)}")
    refuse_repeated("seeds", seeds, "a seed")
    refuse_set_here(settings)
    refuse_labels(settings)
    base = plain({"method": "hcsc", **settings_of_data(data), **settings})
    with_rows = TABLES[table](options_in(base).num_prototypes)
    reference = reference_of(table, with_rows, base, rows, against)
    out = Path(out or Path("trained_models", "ablate", table))
    test_dir = None if test_dir is None else Path(test_dir)
    request = Request("ablate", out, tuple(seeds), evaluations, test_dir)
    found = [checked(name, {**base, **more}) for name, more in chosen_rows(table, with_rows, rows).items()]
    plan = Plan(
        **shared_plan(request, found),
        subject=f"HCSC's {table}",
        command=command or f"solo_hcsc.ablate({table!r}, seeds={list(seeds)}, ...)",
        order=tuple(with_rows),
        reference=reference,
    )
    return Study(plan).run()
