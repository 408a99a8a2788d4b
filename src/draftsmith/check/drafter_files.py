"""The drafter folder's files: are they there, whole, and the ones that the exporter wrote? Headers only, hashes of small files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftsmith.check.weights import BadHeader, read_header, read_index
from draftsmith.findings import Finding
from draftsmith.manifest import MANIFEST, sha256_file
from draftsmith.written import is_file_name

HASHED_BYTES = 200_000_000  # larger files are not hashed: a check takes a second
AGAIN = "copy or download the folder again"
Tensors = dict[str, dict[str, Any]]


def read_tensors(folder: Path | None, dummy: bool = False) -> tuple[list[Finding], Tensors]:
    """Every tensor of the folder, name -> {dtype, shape, data_offsets, file}, and what is wrong with the files. dummy: none are needed."""
    if folder is None:
        return [], {}
    if not folder.is_dir():
        return [Finding("DS310", "error", f"no drafter folder at {folder}", "the engine cannot load it", "correct the path")], {}
    if not (folder / "config.json").is_file():
        evidence = f"no config.json in {folder}"
        return [Finding("DS310", "error", evidence, "the engine cannot tell what the weights are", "point at the exported folder")], {}
    try:
        index = read_index(folder)
    except BadHeader as error:
        return [Finding("DS312", "error", str(error), "no loader can find the tensors", AGAIN)], {}
    shards = sorted(set(index.values())) if index is not None else sorted(path.name for path in folder.glob("*.safetensors"))
    if not shards:
        return [] if dummy else [no_weights(folder)], {}
    findings: list[Finding] = []
    tensors: Tensors = {}
    for name in shards:
        if not (folder / name).is_file():
            evidence = f"the index names {name}, which is not there" if index is not None else f"{name} is no file"
            findings.append(Finding("DS312", "error", evidence, "loading the drafter fails", AGAIN))
            continue
        try:
            header = read_header(folder / name)
        except BadHeader as error:
            findings.append(Finding("DS311", "error", str(error), "loading the drafter fails, or reads garbage", AGAIN))
            continue
        tensors.update({tensor: {**entry, "file": name} for tensor, entry in header.items()})
    lost = sorted(tensor for tensor in index or () if tensor not in tensors)
    if lost and not findings:
        evidence = f"{len(lost)} tensors of the index are in no shard, first {lost[0]}"
        findings.append(Finding("DS312", "error", evidence, "those weights stay random or loading fails", AGAIN))
    return findings, {} if findings else tensors  # a ledger of half a folder would only repeat the fault


def no_weights(folder: Path) -> Finding:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        evidence = f"{folder} has only .bin or .pt weights"
        consequence = "their keys and shapes could not be checked without unpickling them"
        return Finding("DS313", "warning", evidence, consequence, "convert to safetensors")
    return Finding("DS310", "error", f"{folder} has no weights", "the engine cannot load it", "point at the exported folder")


def file_findings(folder: Path) -> list[Finding]:
    """Hashes that the exporter wrote down, for files that are small enough to read."""
    findings = []
    for name, digest in recorded_hashes(folder).items():
        path = folder / name
        if path.is_file() and path.stat().st_size < HASHED_BYTES and sha256_file(path) != digest:
            evidence = f"{name} is not the file that {MANIFEST} describes (sha256 differs)"
            consequence = "it was changed or damaged after the export: what training and verify said does not hold for it"
            findings.append(Finding("DS314", "error", evidence, consequence, "export again, or copy the folder again"))
    return findings


def recorded_hashes(folder: Path) -> Mapping[str, str]:
    """File name -> sha256 of our manifest; {} when there is none or it is another tool's."""
    try:
        outputs = json.loads((folder / MANIFEST).read_text())["outputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not isinstance(outputs, dict):
        return {}
    return {name: digest for name, digest in outputs.items() if isinstance(digest, str) and is_file_name(name)}
