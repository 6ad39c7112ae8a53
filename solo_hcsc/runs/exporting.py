"""A run's encoder as a file for another library or a folder for the hub, or the whole run for solo-learn 1.0.6."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from solo_hcsc.encoders.checkpoints import Checkpoint
from solo_hcsc.encoders.export import Exportable, Exported, export
from solo_hcsc.encoders.formats import EXPORTED_RUN, HUB, card_of, check_place
from solo_hcsc.encoders.hub import CARD, CONFIG, WEIGHTS
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.recorded import EVALUATION, role_of
from solo_hcsc.errors import UserError
from solo_hcsc.files import folder_written_whole, written_together

# Writes the model card's text: of what, the content, the format, and the file's name.
Card = Callable[[Exportable, Exported, str, str], str]


@dataclass(frozen=True)
class Written:
    """A file or folder that was written."""

    path: Path
    checkpoint: Path  # its weights: the file itself, or a file in the folder
    card: Path | None  # the model card beside it
    code: str  # how it is loaded

    @property
    def megabytes(self) -> str:
        return f"{self.checkpoint.stat().st_size / 1e6:.1f} MB"


def write_export(
    encoder: Encoder,
    checkpoint: Checkpoint,
    out: Path,
    format: str,
    method: str | None = None,
    card: Card | None = None,
) -> Written:
    """Write an encoder in a format, or its whole run for solo-learn.

    Args:
        encoder: the run's encoder, or one of foreign weights.
        checkpoint: what it was taken from.
        out: the file; for `solo-learn` and `hub` a folder that is new or empty.
        format: `timm`, `torchvision`, `safetensors`, `onnx`, `detectron2`, `solo-learn` or `hub`.
        method: what trained foreign weights.
        card: writes a model card, which goes beside the file; none if not given.
    """
    check_place(out, format)
    refuse_evaluation(checkpoint)
    asked = Exportable(encoder, checkpoint.recorded.get("method") or method)
    write = {EXPORTED_RUN: _write_run, HUB: _write_for_hub}.get(format, _write_file)
    return write(checkpoint, asked, out, format, card)


def refuse_evaluation(checkpoint: Checkpoint) -> None:
    """Refuse the checkpoint of an evaluation, whose encoder is another run's."""
    if role_of(checkpoint.recorded) == EVALUATION:
        source = checkpoint.recorded.get("pretrained_feature_extractor", "which its args.json names")
        raise UserError(f"{checkpoint.path}: the checkpoint of an evaluation; give that of pretraining, {source}")


def _write_file(checkpoint: Checkpoint, asked: Exportable, out: Path, format: str, card: Card | None) -> Written:
    if out.resolve() == checkpoint.path.resolve():
        raise UserError(f"`out` {out}: is the checkpoint itself; give another file")
    exported = export(asked, format, out.suffix)
    texts = {} if card is None else {card_of(out): card(asked, exported, format, out.name)}
    with written_together(out.parent, [out.name, *(file.name for file in texts)]) as (file, *beside):
        file.write_bytes(exported.content)
        for place, text in zip(beside, texts.values(), strict=True):
            place.write_text(text, encoding="utf-8")
    return Written(out, out, next(iter(texts), None), exported.code_for(out))


def _write_for_hub(checkpoint: Checkpoint, asked: Exportable, out: Path, format: str, card: Card | None) -> Written:
    exported = export(asked, format, Path(WEIGHTS).suffix)
    texts = {**exported.beside} if card is None else {**exported.beside, CARD: card(asked, exported, format, out.name)}

    def is_earlier(folder: Path) -> bool:
        return {file.name for file in folder.iterdir()} in ({WEIGHTS, CONFIG, CARD}, {WEIGHTS, CONFIG})

    with folder_written_whole(out, is_earlier) as folder:
        (folder / WEIGHTS).write_bytes(exported.content)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return Written(out, out / WEIGHTS, None if card is None else out / CARD, exported.code_for(out))


def _write_run(checkpoint: Checkpoint, asked: Exportable, out: Path, format: str, card: Card | None) -> Written:
    from solo_hcsc.runs.solo_learn import RECORD, export_run

    exported = export_run(asked.encoder, checkpoint)
    name = card_of(Path(exported.name)).name

    def is_earlier(folder: Path) -> bool:
        return {file.name for file in folder.iterdir()} in ({RECORD, exported.name, name}, {RECORD, exported.name})

    with folder_written_whole(out, is_earlier) as folder:
        (folder / RECORD).write_text(exported.record, encoding="utf-8")
        (folder / exported.name).write_bytes(exported.checkpoint.content)
        if card is not None:
            text = card(asked, exported.checkpoint, format, exported.name)
            (folder / name).write_text(text, encoding="utf-8")
    code = exported.checkpoint.code.replace("FOLDER", str(out))
    return Written(out, out / exported.name, None if card is None else out / name, code)
