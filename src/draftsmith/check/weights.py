"""Safetensors headers: which tensors a target folder has and whether its files are whole. Weights are never read.

A safetensors file is 8 bytes (little-endian header length n), n bytes of JSON, then the tensors; the largest end offset
in the header says how long the file must be.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from draftsmith.findings import Finding
from draftsmith.written import is_file_name

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors library
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
BITS |= {"I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}


class BadHeader(ValueError):
    """A file that is not safetensors, or not all of it."""


def read_header(path: Path) -> dict[str, Any]:
    """Tensor name -> {dtype, shape, data_offsets} of a safetensors file, without `__metadata__`.

    Raises BadHeader when the file cannot be read, is truncated, has bytes to spare, or is not what the safetensors library takes.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 0 < length <= MAX_HEADER_BYTES:
                raise BadHeader(f"{path.name} is not a safetensors file (header length {length}, file {size} bytes)")
            if size < 8 + length:
                raise BadHeader(f"{path.name} is truncated inside its header: {size} bytes of at least {8 + length}")
            text = file.read(length)
    except OSError as error:
        raise BadHeader(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        header = json.loads(text, object_pairs_hook=once)
        header.pop("__metadata__", None)
        entries = [checked(name, entry) for name, entry in header.items()]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise BadHeader(f"{path.name} has a header that is not safetensors JSON: {error!r}") from None
    end = 0
    for begin, stop, name in sorted(entries):
        if begin != end:
            kind = "overlaps the tensor before it" if begin < end else "leaves a gap before it"
            raise BadHeader(f"{path.name}: {name} begins at byte {begin:,} of the data, expected {end:,}: it {kind}")
        end = stop
    expected = 8 + length + end
    if size < expected:
        raise BadHeader(f"{path.name} is truncated: {size:,} bytes, its header describes {expected:,}")
    if size > expected:
        raise BadHeader(f"{path.name} is longer than its header says: {size:,} bytes, described are {expected:,}")
    return header


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError for a name that stands in it twice: which of the two a loader takes is its own affair."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
        raise ValueError(f"{twice!r} stands in it twice")
    return found


def checked(name: str, entry: dict[str, Any]) -> tuple[int, int, str]:
    """(first byte, end, name) of a tensor. Raises ValueError or a relative when it is no entry, or its bytes do not hold its shape."""
    (begin, end), shape, dtype = entry["data_offsets"], entry["shape"], entry["dtype"]
    numbers = [begin, end, *shape]
    if not isinstance(dtype, str) or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError(f"{name!r} has shape {shape}, type {dtype!r}, bytes {begin} to {end}")
    bits = BITS.get(dtype)
    if bits is not None and (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"{name!r} of shape {shape} and type {dtype} has {end - begin:,} bytes")
    return begin, end, name


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
        wrong = next((name for name, shard in weight_map.items() if not is_file_name(shard)), None)
        if wrong is not None or not weight_map:
            raise ValueError(f"{wrong!r} has no file" if weight_map else "it names no tensor")
        return dict(weight_map)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
            evidence = f"{INDEX} names {name}, which is not there" if index is not None else f"{name} is no file"
            findings.append(Finding("DS103", "error", evidence, "loading the target fails", again))
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
    return sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern) if path.is_file())
