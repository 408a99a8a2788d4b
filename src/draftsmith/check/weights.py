"""Safetensors headers: which tensors a target folder has and whether its files are whole. Weights are never read.

A safetensors file is 8 bytes (little-endian header length n), n bytes of JSON, then the tensors; the largest end offset
in the header says how long the file must be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftsmith.findings import Finding

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors library


class BadHeader(ValueError):
    """A file that is not safetensors, or not all of it."""


def read_header(path: Path) -> dict[str, Any]:
    """Tensor name -> {dtype, shape, data_offsets} of a safetensors file, without `__metadata__`.

    Raises BadHeader when the file is truncated, has bytes to spare, or is not safetensors.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < length <= MAX_HEADER_BYTES:
            raise BadHeader(f"{path.name} is not a safetensors file (header length {length}, file {size} bytes)")
        if size < 8 + length:
            raise BadHeader(f"{path.name} is truncated inside its header: {size} bytes of at least {8 + length}")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise BadHeader(f"{path.name} has a header that is not safetensors JSON: {error!r}") from None
    if size < expected:
        raise BadHeader(f"{path.name} is truncated: {size:,} bytes, its header describes {expected:,}")
    if size > expected:
        raise BadHeader(f"{path.name} is longer than its header says: {size:,} bytes, described are {expected:,}")
    return header


def read_bytes(path: Path, entry: dict[str, Any], start: int = 0, count: int | None = None) -> bytes:
    """Bytes of one tensor of a whole safetensors file, from `start`, all of them or `count`. `entry` comes from read_header."""
    begin, end = entry["data_offsets"]
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        file.seek(8 + header + begin + start)
        return file.read(min(end - begin - start, end if count is None else count))


def read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name -> shard of the index file; None when there is no index. Raises BadHeader when it is not an index."""
    path = folder / INDEX
    if not path.is_file():
        return None
    try:
        weight_map = json.loads(path.read_text())["weight_map"]
        return {str(name): str(shard) for name, shard in weight_map.items()}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BadHeader(f"{INDEX} is not an index of tensors: {error!r}") from None


def weight_findings(folder: Path) -> list[Finding]:
    """Shards that are missing, truncated or unreadable, and tensors that the index promises but no shard has."""
    again = "copy or download the file again"
    try:
        index = read_index(folder)
    except BadHeader as error:
        return [Finding("DS105", "error", str(error), "no loader can find the tensors", again)]
    files = sorted(set(index.values())) if index is not None else sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        if any(folder.glob("*.bin")):
            evidence = f"{folder} has only .bin weights"
            return [Finding("DS109", "warning", evidence, "nothing could be checked without unpickling them", "convert to safetensors")]
        fix = "point target.model at a complete Hugging Face folder"
        return [Finding("DS102", "error", f"{folder} has no *.safetensors file", "neither the engine nor capture can load the target", fix)]
    findings: list[Finding] = []
    tensors: dict[str, str] = {}  # tensor -> the file it is in
    broken: set[str] = set()
    for name in files:
        if not (folder / name).is_file():
            findings.append(Finding("DS103", "error", f"{INDEX} names {name}, which is not there", "loading the target fails", again))
            broken.add(name)
            continue
        try:
            tensors.update(dict.fromkeys(read_header(folder / name), name))
        except BadHeader as error:
            findings.append(Finding("DS104", "error", str(error), "loading the target fails, or reads garbage", again))
            broken.add(name)
    lost = sorted(tensor for tensor, shard in (index or {}).items() if shard not in broken and tensors.get(tensor) != shard)
    if lost:
        evidence = f"{len(lost)} tensors of {INDEX} are not in the shard it names, first {lost[0]}"
        findings.append(Finding("DS106", "error", evidence, "those weights stay random or loading fails", again))
    return findings


def weight_bytes(folder: Path) -> int:
    """Bytes of all weight files."""
    return sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern))
