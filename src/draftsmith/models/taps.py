"""Which hidden states a drafter taps, and how each engine numbers them.

Inside Draftsmith a tap is always a boundary: boundary j is the residual stream after j decoder layers (0 = embedding output,
N = after the last layer, before the final norm). Everything else is a rendering of boundaries, and lives in this file.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.errors import CheckFailed

# SGLang numbers an explicit tap by the layer whose OUTPUT it is (boundary - 1) and adds 1 itself; its DeepSeek-V2/V3 family
# classes (and GLM-4-MoE-Lite) add 1 only when the first id is 1, and read the ids as boundaries otherwise.
SGLANG_RAW_UNLESS_FIRST_IS_1 = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm4_moe_lite"})


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


def render_sglang(boundaries: Sequence[int], target_model_type: str) -> list[int]:
    """Nested `eagle_config.eagle_aux_hidden_state_layer_ids` as SGLang reads it for this target class.

    Raises CheckFailed where no list of ids can name the boundaries.
    """
    ids = [boundary - 1 for boundary in boundaries]
    if target_model_type not in SGLANG_RAW_UNLESS_FIRST_IS_1 or ids[0] == 1:
        return ids
    if boundaries[0] == 1:
        raise CheckFailed(
            f"SGLang cannot tap boundary 1 first on a {target_model_type} target: a first id of 1 makes it add 1 to every id",
            hint="start at boundary 2 (the default)",
        )
    return list(boundaries)
