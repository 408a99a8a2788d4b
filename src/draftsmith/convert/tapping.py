"""Tap ids of every format and engine version, read to boundaries and written from boundaries. The numbering itself is models/taps.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from draftsmith.convert.detect import Found
from draftsmith.convert.drafter import Asked, Drafter, Field, Taps
from draftsmith.convert.ledger import Ledger
from draftsmith.models.taps import KEY, SGLANG_RAW_SINCE, default_taps, dflash_default, read_sglang, read_vllm, sglang_boundaries

NESTED = f"eagle_config.{KEY}"
NEWEST_SGLANG = Version("0.5.23")
BEFORE_RAW = Version("0.5.12")  # the last SGLang release that added 1 to every list
OUTPUTS = ("dflash_config.target_layer_ids", "dspark_target_layer_ids", "target_layer_ids")  # layer outputs: boundary - 1
ASK_TARGET = "give --target (the target's folder or config.json), or --taps with the boundaries that training used"


# --- reading ---------------------------------------------------------------------------------------------------------


def read_taps(ids: Mapping[str, Any], found: Found, fields: Mapping[str, Field], asked: Asked, ledger: Ledger) -> Taps:
    """Boundaries from all paths that name ids; they must agree. ids: path -> list, only those that are there."""
    meant = {path: meaning(path, tuple(value), found, fields, asked) for path, value in ids.items()}
    sources = {path: tuple(value) for path, value in ids.items()}
    if asked.taps is not None:
        return Taps(asked.taps, True, sources, "--taps")
    known = {path: readings[0] for path, readings in meant.items() if len(readings) == 1}
    if len(set(known.values())) > 1:
        said = "; ".join(f"{path} means {list(boundaries)}" for path, boundaries in known.items())
        ledger.impossible("config", next(iter(known)), f"the tap ids contradict each other: {said}; {ASK_TARGET}")
    if known:
        return increasing(Taps(next(iter(known.values())), True, sources, next(iter(known))), ledger)
    for path, readings in meant.items():
        ledger.impossible("config", path, undecided(path, ids[path], readings, asked))
    if found.layout in ("dflash", "dspark"):
        return default_block_taps(fields, asked, ledger)
    if asked.num_target_layers is None:
        return Taps(None, False)
    return Taps(default_for(found, asked), False)


def meaning(path: str, ids: tuple[int, ...], found: Found, fields: Mapping[str, Field], asked: Asked) -> list[tuple[int, ...]]:
    """What the ids of one path can mean: one list when it is certain, more when it depends on the version, none without the target."""
    if path in OUTPUTS:
        return [tuple(number + 1 for number in ids)]
    if path != NESTED:
        return [ids]
    kind = asked.target_type or ("target_model_type" in fields and fields["target_model_type"].value) or None
    if kind is None:
        return []
    layers = asked.num_target_layers or 10_000  # only gpt-oss compares with it
    versions = [asked.source_version] if asked.source_version else [BEFORE_RAW, NEWEST_SGLANG]
    return list(dict.fromkeys(sglang_boundaries(ids, layers, str(kind), version) for version in versions))


def undecided(path: str, ids: Sequence[int], readings: list[tuple[int, ...]], asked: Asked) -> str:
    if readings:
        both = " or ".join(str(list(reading)) for reading in readings)
        return (
            f"{list(ids)} means boundaries {both}: SGLang {SGLANG_RAW_SINCE} changed it for {asked.target_type} targets; "
            f"give --source-engine sglang==VERSION (of training and serving), or --taps"
        )
    return f"{list(ids)} is SGLang's numbering, which depends on the target's class; {ASK_TARGET}"


def default_for(found: Found, asked: Asked) -> tuple[int, ...]:
    """The default of the engines that the source was made for."""
    layers = asked.num_target_layers
    assert layers is not None
    if asked.source_version is not None and not found.speculators:
        return sglang_boundaries(None, layers, asked.target_type or "", asked.source_version)
    return default_taps(layers)


def default_block_taps(fields: Mapping[str, Field], asked: Asked, ledger: Ledger) -> Taps:
    layers = fields["num_target_layers"].value if "num_target_layers" in fields else asked.num_target_layers
    if layers is None:
        ledger.impossible("config", None, f"no target_layer_ids and no num_target_layers; {ASK_TARGET}")
        return Taps(None, False)
    count = int(fields["num_hidden_layers"].value) if "num_hidden_layers" in fields else 1
    return Taps(dflash_default(int(layers), count), True, {}, f"no ids: the default of {count} draft layers on {layers} layers")


def increasing(taps: Taps, ledger: Ledger) -> Taps:
    boundaries = taps.boundaries or ()
    if list(boundaries) != sorted(set(boundaries)) or (boundaries and boundaries[0] < 0):
        ledger.impossible(
            "config",
            taps.where,
            f"boundaries {list(boundaries)} do not increase: engines join the states in layer order, not in list order",
        )
    return taps


# --- writing ---------------------------------------------------------------------------------------------------------


def render_taps(drafter: Drafter, asked: Asked, ledger: Ledger) -> dict[str, list[int] | None]:
    """Path -> ids for the asked format and engine version, each read back through the engine's own rule."""
    boundaries = drafter.taps.boundaries
    if asked.format == "speculators":
        key = KEY if drafter.layout == "eagle3" else "aux_hidden_state_layer_ids"
        return {key: list(boundaries) if boundaries is not None and drafter.taps.given else None}
    if boundaries is None:
        return {}
    if drafter.layout in ("dflash", "dspark"):
        return render_block(drafter, asked, boundaries, ledger)
    if not drafter.taps.given and boundaries == engine_default(asked):
        return {}
    paths: dict[str, list[int] | None] = {KEY: list(boundaries)}
    kind = asked.target_type or drafter.value("target_model_type")
    version = asked.version if asked.family == "sglang" else NEWEST_SGLANG
    nested = render_nested(boundaries, str(kind), asked.num_target_layers or 10_000, version) if kind else None
    if nested is not None:
        paths[NESTED] = nested
    elif asked.family == "sglang":
        reason = f"no list of ids makes SGLang {asked.version} tap boundaries {list(boundaries)} of a {kind} target"
        ledger.impossible(
            "config", drafter.taps.where, reason if kind else f"SGLang's numbering depends on the target's class; {ASK_TARGET}"
        )
    return paths


def render_nested(boundaries: Sequence[int], kind: str, layers: int, version: Version) -> list[int] | None:
    """SGLang's nested ids for this target class and version: the one spelling that reads back as the boundaries; None when none does."""
    for ids in ([number - 1 for number in boundaries], list(boundaries)):
        if sglang_boundaries(ids, layers, kind, version) == tuple(boundaries):
            return ids
    return None


def render_block(drafter: Drafter, asked: Asked, boundaries: Sequence[int], ledger: Ledger) -> dict[str, list[int] | None]:
    """DFlash and DSpark: layer outputs; a vLLM that takes them raw gets boundaries on top, which it looks at first."""
    outputs = [number - 1 for number in boundaries]
    if outputs[0] < 0 and drafter.layout == "dflash":
        ledger.impossible(
            "config",
            drafter.taps.where,
            "boundary 0 (the embedding output) has no layer id: DFlash ids begin with the first layer's output",
        )
    path = "dflash_config.target_layer_ids" if drafter.layout == "dflash" else "target_layer_ids"
    paths: dict[str, list[int] | None] = {path: outputs}
    nested = {"dflash_config": {"target_layer_ids": outputs}} if drafter.layout == "dflash" else {"target_layer_ids": outputs}
    if asked.family == "sglang":
        reading = read_sglang(nested, drafter.layout, 10_000, "", asked.version).boundaries
        assert reading == tuple(boundaries), (reading, boundaries)
    elif drafter.layout == "dflash" and read_vllm(nested, 10_000, asked.version, 1).boundaries != tuple(boundaries):
        paths[KEY] = list(boundaries)
    return paths


def engine_default(asked: Asked) -> tuple[int, ...] | None:
    layers = asked.num_target_layers
    if layers is None:
        return None
    if asked.family == "sglang":
        return sglang_boundaries(None, layers, asked.target_type or "", asked.version)
    return read_vllm({}, layers, asked.version, 1).boundaries
