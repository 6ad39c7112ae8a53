"""`solo-hcsc knn`: weighted KNN on a frozen encoder's features, without training."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from solo_hcsc.cli.flags import check_features, knn_parser
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import RunFiles, find_run
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation, describe_data, result_file
from solo_hcsc.settings import Settings, take


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    files = find_run(flags.pretrained_feature_extractor)
    source = evaluated_images(flags, files.settings).located(needs_val=True).labelled()

    from solo_hcsc.data.sets import evaluation_sets
    from solo_hcsc.evaluation.knn import knn

    invocation = Invocation("knn", tuple(argv))
    evaluate(knn, flags, files, source, lambda crop: evaluation_sets(source, crop, crop), invocation)


def evaluate(
    function: Callable, flags: Settings, files: RunFiles, source: ImageSource, sets: Callable, invocation: Invocation
) -> None:
    """Embed the bank and the queries; print and save the result of every kind of features."""
    from solo_hcsc.data.folders import classes_of
    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.data.views import evaluation_transforms
    from solo_hcsc.evaluation.features import Frozen, tell_skipped
    from solo_hcsc.evaluation.knn import check_ks
    from solo_hcsc.evaluation.labelled import Labelled
    from solo_hcsc.runs.run import Run

    started, name = time.monotonic(), invocation.command
    opened, loading = Run(files, flags.encoder, flags.encoder_args), take(Loading, flags)
    frozen = Frozen(opened, source.crop_size[0], accelerator=flags.accelerator)
    encoder, heads = frozen.encoder, {kind: frozen.head(kind) for kind in flags.features}
    train_set, val_set = sets(evaluation_transforms(source)[1])
    images, queries, classes = len(train_set), len(val_set), classes_of(train_set)
    check_ks(flags.k, images)
    names = {kind: name if kind == "backbone" else f"{name}-{kind}" for kind in heads}
    places = {kind: result_file(encoder.checkpoint, names[kind], source) for kind in heads}
    print(encoder.taken)
    print(
        f"{name} of {encoder.checkpoint} ({encoder.name}, {' and '.join(heads)} features) on {source.dataset}: "
        f"{images} images in the bank, {queries} queries, {frozen.device}",
        flush=True,
    )
    both = frozen.of(train_set, loading, "bank"), frozen.of(val_set, loading, "queries")
    skipped, (images, queries) = both[0].skipped + both[1].skipped, (len(one.y) for one in both)
    check_ks(flags.k, images, " that can be read")
    data = describe_data(source, classes, skipped, train=images, val=queries)
    for kind, head in heads.items():
        seen = (Labelled(one.x.numpy(), one.y.numpy(), classes) for one in map(head, both))
        result = function(*seen, flags.k, flags.temperature, flags.distance_function)
        other = [*result.settings["deviations"], *(["features"] if kind != "backbone" else [])]
        settings = {**result.settings, "features": kind, "deviations": other}
        seconds = time.monotonic() - started
        result = replace(result, settings=settings, data=data, method=flags.method, seconds=seconds)
        result.of(encoder, invocation).save(places[kind])
        way = ", ".join(f"{name}={settings[name]}" for name in result.columns if settings.get(name) is not None)
        print(f"{kind} features:\n" * (len(heads) > 1) + result.table())
        print(f"best: {result.metrics['acc1']:.2f} % of {queries} images, with {way}; result in {places[kind]}")
    tell_skipped(skipped, images + queries + len(skipped))


def parse(argv: Sequence[str]) -> Settings:
    parser = knn_parser("knn", "Weighted KNN accuracy of the frozen encoder of a checkpoint; trains nothing.")
    flags = parser.parse(argv)
    check_features(flags)
    return flags
