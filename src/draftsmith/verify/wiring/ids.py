"""What a drafter's config says of its taps, and what this engine version makes of it: so that the advice is the ids to write. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftsmith.errors import CheckFailed
from draftsmith.models.taps import engine_version, read_sglang, read_vllm, render_ids, written_ids


@dataclass(frozen=True)
class Ids:
    """read: the boundaries that this version is known to make of the written ids (or of none). wanted: ids for those of training."""

    key: str
    written: tuple[int, ...] | None
    read: tuple[int, ...]
    wanted: tuple[int, ...] | None  # None: no list of ids names them


def method_of(config: Mapping[str, Any]) -> str:
    """ "dflash" for a drafter that fills blocks, else "eagle3"."""
    return "dflash" if config.get("dflash_config") is not None else "eagle3"


def ids_of(config: Mapping[str, Any], engine: str, target: Mapping[str, Any], trained: Sequence[int]) -> Ids:
    """For an engine named like "sglang==0.5.17"; target: its text config. Engines concatenate in layer order, not in that of ids."""
    method, num_layers, kind = method_of(config), int(target["num_hidden_layers"]), str(target.get("model_type", ""))
    package, version = engine.partition("==")[0], engine_version(engine)
    key, written = written_ids(config, package, method)
    if package == "sglang":
        reading = read_sglang(config, method, num_layers, kind, version)
    else:
        reading = read_vllm(config, num_layers, version, runner=1)
    try:
        wanted = tuple(render_ids(trained, package, method, num_layers, kind, version)) if in_layer_order(trained) else None
    except CheckFailed:
        wanted = None
    return Ids(key, written, tuple(sorted(reading.boundaries)), wanted)


def in_layer_order(boundaries: Sequence[int]) -> bool:
    return list(boundaries) == sorted(boundaries)


def what_to_write(passed: Sequence[int], trained: Sequence[int], ids: Ids, last: int, retrain: str) -> str:
    """The ids that make this engine pass the trained boundaries: by its known convention if it followed it, else by what it did."""
    if not in_layer_order(trained):
        return f"the engine concatenates in the order of layers, whatever the order of the ids: {retrain}"
    if ids.wanted is None:
        return f"no ids under {ids.key} make this engine version pass {list(trained)}: {retrain}"
    if tuple(passed) == ids.read:
        made = "this engine version takes its default without them" if ids.written is None else convention(ids.wanted, trained)
        return f"write {list(ids.wanted)} under {ids.key} in the drafter's config.json: {made}"
    written = ids.written
    if written is not None and len(written) == len(passed) and last + 1 not in passed:
        shifts = {boundary - number for boundary, number in zip(passed, written, strict=True)}
        if len(shifts) == 1:
            shift = shifts.pop()
            wanted = tuple(boundary - shift for boundary in trained)
            if wanted == written or min(wanted) < 0:
                return retrain
            return f"write {list(wanted)} under {ids.key} in the drafter's config.json: {convention(wanted, trained)}"
    said = "has no ids there" if written is None else f"says {list(written)} there, which this engine version did not follow"
    return f"write {list(ids.wanted)} under {ids.key} in the drafter's config.json (it {said}), then verify again"


def convention(ids: Sequence[int], boundaries: Sequence[int]) -> str:
    """ "this engine version makes boundary i + 1 of id i"."""
    shifts = {boundary - number for boundary, number in zip(boundaries, ids, strict=True)}
    if len(shifts) > 1:
        return "this engine version reads them as the trained boundaries"
    shift = shifts.pop()
    return f"this engine version makes boundary {'i' if not shift else f'i {shift:+d}'} of id i"


def as_dict(ids: Ids) -> dict[str, Any]:
    return asdict(ids)
