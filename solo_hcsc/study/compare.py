"""Compare methods on the same images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from solo_hcsc.data.sets import one_split
from solo_hcsc.data.source import STORED, ImageSource
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.progress import say
from solo_hcsc.study.asked import EVALUATIONS, Evaluations, refuse_repeated, rows_of, settings_of_data
from solo_hcsc.study.findings import choice, winner
from solo_hcsc.study.planning import CheckedRow, Request, check_early, checked, shared_plan
from solo_hcsc.study.record import Comparison
from solo_hcsc.study.search import EqualSearch, Searched, TrialScale, import_optuna, space_of
from solo_hcsc.study.study import Plan, Study
from solo_hcsc.typed import typed


@typed
def compare(
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]],
    data: str | Path | None = None,
    *,
    seeds: Sequence[int] = range(3),
    out: str | Path = "trained_models/comparison",
    evaluations: Evaluations = EVALUATIONS,
    test_dir: str | Path | None = None,
    budget: Literal["epochs", "seconds"] = "epochs",
    search: int = 0,
    search_epochs: int | None = None,
    search_seed: int = 1000,
    command: str | None = None,
    **settings: Any,
) -> Comparison:
    """Pretrain methods on the same images with several seeds, evaluate each run, and return all figures.

    Each run is a process of its own. The same call again goes on after an interruption and repeats nothing that is
    finished; beside a running one it takes over part of the runs.

    Args:
        methods: names of methods, or each with settings of its own; `oracle` is HCSC with the true labels as its tree.
        data: a folder of images or the name of a data set.
        seeds: one run of each method with each seed.
        out: folder of the runs and of comparison.json.
        evaluations: names of what is done with each run, or each with its settings.
        test_dir: folder of the images that judge the finished runs, instead of `val_dir`.
        budget: equal epochs for all; with `seconds`, the faster ones also run until they take as long as the slowest.
        search: trials of each method whose settings are drawn; the best of each is compared.
        search_epochs: epochs of a trial; `max_epochs` if not given.
        search_seed: seed of the draws and of the trials' runs.
        command: what a reader of the report should type to repeat this.
        **settings: of pretraining, for every method: `max_epochs=50, encoder="resnet18"`.

    Returns:
        A `Comparison`; its `failed` names runs that failed and why, which the same call repeats.

    Example:
        >>> found = compare(["hcsc", "mocov2plus"], "photos", max_epochs=50)  # doctest: +SKIP
        >>> print(found.table())  # doctest: +SKIP
    """
    refuse_repeated("seeds", seeds, "a seed")
    given = rows_of(methods, {**settings_of_data(data), **settings})
    test_dir = None if test_dir is None else Path(test_dir)
    request = Request("compare", Path(out), tuple(seeds), evaluations, test_dir)
    rows = [checked(name, one) for name, one in given.items()]
    trials = None
    if search:
        check_early(request, rows)
        trials = prepare_search(request, rows, search, search_epochs, search_seed).run()
        for row in rows:
            say(choice(trials, row.variant.name))
        found = {row.variant.name: winner(trials, row.variant.name).settings for row in rows}
        rows = [checked(row.variant.name, {**row.variant.settings, **found[row.variant.name]}) for row in rows]
    plan = Plan(
        **shared_plan(request, rows),
        subject=None,
        command=command or f"solo_hcsc.compare({list(given)}, seeds={list(seeds)}, ...)",
        equal_time=budget == "seconds",
        search=trials,
    )
    return Study(plan).run()


def prepare_search(
    request: Request, rows: Sequence[CheckedRow], trials: int, epochs: int | None, seed: int
) -> EqualSearch:
    """Prepare so many trials of each method; refuse those that held-out training images would not judge."""
    first = rows[0].settings
    if first.dataset not in ("custom", *STORED) or request.test_dir is None:
        raise ArgumentError(
            "`search`: settings are chosen by held-out training images; give them as `val_dir` of `dataset` custom, "
            "and other images as `test_dir` to judge the winners"
        )
    if request.test_dir == first.val_dir:
        raise UserError(
            f"`test_dir` {request.test_dir}: is also `val_dir`, on which `search` chooses; give other images"
        )
    import_optuna()
    source = ImageSource.of_flags(first).located(needs_val=True)
    images, held_out = (len(one_split(source, split)) for split in ("train", "val"))  # type: ignore[arg-type]
    searched = []
    for row in rows:
        own = row.settings
        scale = TrialScale(own.batch_size, round(images * first.data_fraction), bool(own.lars))
        searched.append(Searched(row.variant.name, row.variant.settings, space_of(own.method, scale, own.typed)))
    return EqualSearch(request.out, searched, trials, epochs or first.max_epochs, seed, held_out)
