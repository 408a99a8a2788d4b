"""`draftsmith convert`: one folder in, one folder out, a ledger of everything between. Nothing is written unless all of it is right."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from draftsmith.convert.card import carry_files, write_card
from draftsmith.convert.drafter import Asked, Drafter, flatten
from draftsmith.convert.ledger import Ledger
from draftsmith.convert.read import read_drafter
from draftsmith.convert.source import Source, open_source
from draftsmith.convert.write import write_drafter
from draftsmith.convert.writing import Written
from draftsmith.errors import CheckFailed, UsageError
from draftsmith.findings import Finding
from draftsmith.manifest import Manifest, atomic_folder, atomic_write_json, canonical_hash, hash_outputs, sha256_file

WEIGHTS = "model.safetensors"
# what an independent look at the result must not find, whatever its severity: a tensor that the loader drops, or a name that it lacks
NEVER = ("DS321", "DS322", "DS327", "DS328")
PERMUTED = "DS327"  # as a warning: the draft vocabulary is in another order than that of ids; --d2t vouches for it
Inspect = Callable[[Path, Mapping[str, Any], str], list[Finding]]  # folder, its config, method -> findings for the engine version


class Refused(CheckFailed):
    """The format cannot say what the drafter is; the ledger says why."""

    def __init__(self, ledger: Ledger, found: str, wanted: str) -> None:
        self.ledger = ledger
        reasons = [f"{entry.source or entry.kind}: {entry.reason}" for entry in ledger.refused]
        more = f"\n  and {len(reasons) - 4} more" if len(reasons) > 4 else ""
        super().__init__(
            f"{found} cannot become {wanted}:\n  " + "\n  ".join(reasons[:4]) + more,
            hint="nothing was written; --json lists the whole ledger",
        )


@dataclass(frozen=True)
class Converted:
    """What was done. `warnings`: findings of the check of the result that did not stop it."""

    drafter: Drafter
    ledger: Ledger
    folder: Path
    warnings: list[Finding]


def convert(source_folder: Path, folder: Path, asked: Asked, inspect: Inspect) -> Converted:
    """Convert a drafter's folder. inspect: the check of the result against its engine.

    Raises UsageError, EnvironmentFailed (damaged source), Refused. The result is there whole or not at all.
    """
    started = time.time()
    if os.path.lexists(folder):  # a link to nowhere, too
        raise UsageError(f"{folder} exists already", hint="choose another -o, or remove it first")
    source = open_source(source_folder)
    ledger = Ledger()
    drafter = read_drafter(source, asked, ledger)
    wanted = f"a {asked.format} folder for {asked.family} {asked.version}"
    written = write_drafter(drafter, source, asked, ledger)
    if ledger.refused:
        raise Refused(ledger, drafter.found, wanted)
    lost = ledger.unaccounted("config", flatten(source.config), flatten(written.config))
    lost += ledger.unaccounted("tensor", source.places, written.tensors)
    assert not lost, f"the ledger has no entry for {lost}"
    with atomic_folder(folder) as new:
        save(new, source, written)
        carry_files(source_folder, new, drafter, asked, ledger)
        findings = inspect(new, written.config, drafter.layout.removesuffix("_mla"))
        for finding in findings:
            permuted = finding.code == PERMUTED and finding.severity == "warning"
            if finding.severity == "error" or (finding.code in NEVER and not (permuted and asked.vocabulary)):
                vouched = "; if it was trained so, give --d2t offsets or --d2t absolute" if permuted else ""
                ledger.impossible("drafter", finding.code, f"{finding.evidence}; {finding.consequence}{vouched}")
        if ledger.refused:
            raise Refused(ledger, drafter.found, wanted)
        write_card(source_folder, new, drafter, asked, ledger)
        record(new, source, drafter, asked, ledger, started)
    return Converted(drafter, ledger, folder, [finding for finding in findings if finding.severity == "warning"])


def save(folder: Path, source: Source, written: Written) -> None:
    """config.json and model.safetensors."""
    tensors = {name: value if isinstance(value, Tensor) else source.load(value) for name, value in written.tensors.items()}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    atomic_write_json(folder / "config.json", written.config)


def record(folder: Path, source: Source, drafter: Drafter, asked: Asked, ledger: Ledger, started: float) -> None:
    """manifest.json: the source by hash, what was asked, the ledger, the result by hash."""
    inputs = {path.name: sha256_file(path) for path in sorted({*source.places.values(), source.folder / "config.json"})}
    boundaries = drafter.taps.boundaries
    summary: dict[str, Any] = {"found": drafter.found, "counts": ledger.counts(), "ledger": ledger.as_list()}
    if boundaries is not None:
        summary["taps"] = {"boundaries": list(boundaries), "from": drafter.taps.where}
    config = {"format": asked.format, "engine": f"{asked.family}=={asked.version}", "target_type": asked.target_type, "files": inputs}
    manifest = Manifest("convert", config, {"source": canonical_hash(inputs)}, hash_outputs(folder), summary, started=started)
    manifest.active_s = time.time() - started
    manifest.write(folder)
