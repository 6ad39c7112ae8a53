"""The model card of an exported encoder, as Markdown."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from markupsafe import Markup

from solo_hcsc.data.source import STORED
from solo_hcsc.data.views import View
from solo_hcsc.encoders.export import Exportable, Exported
from solo_hcsc.encoders.formats import HUB
from solo_hcsc.errors import on_one_line
from solo_hcsc.report import summary, templating
from solo_hcsc.runs.results import results_of
from solo_hcsc.version import __version__

_COLUMNS = ("evaluation", "setting", "data", "classes", "images", "crop", "measure", "value", "paper")
_UNKNOWN = "not known"


def write_card(exportable: Exportable, exported: Exported, kind: str, file: str, data_license: str | None) -> str:
    """Write the model card: what the file is, how to use it, and what evaluations found for its checkpoint.

    Args:
        exportable: The encoder in the file.
        exported: The file's content.
        kind: Its format.
        file: Its name, without folders.
        data_license: Licence of the training images.
    """
    encoder = exportable.encoder
    trained = encoder.trained_with
    facts = {
        "file": f"{file}, for {kind}",
        "SHA-256": sha256(exported.content).hexdigest(),
        "encoder": f"{encoder.name}{_settings(encoder.settings)}",
        "features": f"{exportable.features.shape[1]} per image",
        "method": exportable.method,
        **({"trained with": "true labels (oracle); not self-supervised"} if trained.get("oracle_labels") else {}),
        **({"started from": Path(str(start)).name} if (start := trained.get("init_weights")) else {}),
        **({"preset": trained["preset"]} if "preset" in trained else {}),  # which only HCSC has
        "epochs trained": _epochs(encoder.epochs, trained.get("max_epochs")),
        "data": _data(trained),
        "licence of the data": data_license or "not given",
        "resize": _resize(exportable.view),
        "crop size": f"{exportable.view.crop_size} x {exportable.view.crop_size} pixels, RGB",
        "mean": _listed(exportable.view.mean),
        "standard deviation": _listed(exportable.view.std),
        "made by": f"solo_hcsc {__version__}",
    }
    rows = summary.rows_of(results_of(encoder.checkpoint, encoder.fingerprint), encoder.checkpoint.parent)
    return templating.render(
        "card.md.j2",
        on_hub=kind == HUB,
        tags=[name for name in ("timm", "solo-learn", exportable.method) if name],
        title=_text(f"{encoder.name} trained with {exportable.method or 'an unknown method'}"),
        facts={name: _text(value or _UNKNOWN) for name, value in facts.items()},
        code=Markup(exported.code_for(file)),
        language=exported.language,
        transform=Markup(exportable.view.code),
        colours_known=exportable.view.mean is not None,
        figures=Markup(summary.markdown(rows, _COLUMNS).strip()) if rows else "",
        warnings=[_text(warning) for warning in encoder.warnings],
    )


def _text(value: Any) -> Markup:
    return Markup(summary.as_text(on_one_line(value)))


def _settings(settings: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f" ({shown})" if shown else ""


def _epochs(done: int | None, asked: Any) -> str | None:
    return None if done is None else str(done) if asked in (None, done) else f"{done} of {asked}"


def _data(trained: Mapping[str, Any]) -> str | None:
    """Return the data set's name; for folders, their last parts."""
    if trained.get("dataset") not in ("custom", *STORED):
        return trained.get("dataset")
    return f"{trained['dataset']}: {Path(str(trained.get('data_dir'))).name}/{trained.get('train_dir')}"


def _resize(view: View) -> str:
    side = f"both sides to {view.crop_size}" if view.whole else f"the shorter side to {view.resize}"
    return f"{side} pixels, bilinear with antialiasing" + ("" if view.whole else "; then the centre")


def _listed(values: tuple[float, ...] | None) -> str | None:
    return None if values is None else ", ".join(map(str, values))
