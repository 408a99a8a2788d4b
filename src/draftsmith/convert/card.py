"""Files that go along: the model card with a note about the conversion, licences, tokenizer files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from draftsmith import __version__
from draftsmith.convert.drafter import Asked, Drafter
from draftsmith.convert.ledger import Ledger
from draftsmith.convert.source import INDEX, OLD_INDEX, OLD_WEIGHTS, weight_files
from draftsmith.manifest import MANIFEST, atomic_write_text

CARD, MASK = "README.md", "mask_embedding.pt"
CARRIED = re.compile(
    r"(LICEN[CS]E|NOTICE|USE_POLICY).*|generation_config\.json|(added_|special_)?tokens?(izer|_map|s_map)?.*\.(json|model|txt)|"
    r"vocab\.json|merges\.txt|chat_template\..*",
    re.IGNORECASE,
)
REPLACED = ("config.json", MANIFEST, INDEX, OLD_INDEX, OLD_WEIGHTS)


def carry_files(source: Path, folder: Path, drafter: Drafter, asked: Asked, ledger: Ledger) -> None:
    """Copy what belongs to a drafter; enter the rest as dropped. mask_embedding.pt is part of a DFlash drafter."""
    weights = set(weight_files(source, OLD_INDEX, OLD_WEIGHTS))
    for path in sorted(path for path in source.iterdir() if path.is_file()):
        name = path.name
        if name in REPLACED or name == CARD or name.startswith(".") or path in weights or name.endswith(".safetensors"):
            continue
        if CARRIED.fullmatch(name) or (name == MASK and asked.format != "speculators"):
            shutil.copyfile(path, folder / name)
            ledger.add("file", "kept", name, name)
        elif name == MASK:
            ledger.impossible("file", name, "the embedding of the mask token was trained by itself; speculators has no place for it")
        else:
            ledger.add(
                "file", "dropped", name, None, "not part of a drafter" if path.suffix != ".py" else "code; engines have their own class"
            )


def write_card(source: Path, folder: Path, drafter: Drafter, asked: Asked, ledger: Ledger) -> None:
    """The source's card with the note behind its front matter, or a card of the note alone."""
    text = (source / CARD).read_text(errors="replace") if (source / CARD).is_file() else ""
    front = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    head = front[0] if front else ""
    atomic_write_text(folder / CARD, f"{head}{note(source, drafter, asked, ledger)}{text[len(head) :]}")
    ledger.add("file", "computed", CARD if text else None, CARD, "the card with a note about the conversion" if text else "a note")


def note(source: Path, drafter: Drafter, asked: Asked, ledger: Ledger) -> str:
    """A few lines: what it was, what it is, what it taps."""
    boundaries = drafter.taps.boundaries
    taps = f"boundaries {list(boundaries)}" if boundaries is not None else "the default, 2, N//2 and N-3"
    counts = ", ".join(f"{number} {action}" for action, number in ledger.counts().items())
    folder = source.resolve().name
    return (
        f"> **Converted** by Draftsmith {__version__} from {drafter.found} (folder `{folder}`) to the {asked.format} format "
        f"for {asked.family} {asked.version}. Weights are bit-equal. Taps: {taps} (boundary j is the residual stream after j layers "
        "of the target). "
        f"Every tensor and config field is accounted for in `{MANIFEST}` ({counts}).\n\n"
    )
