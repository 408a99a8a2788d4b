"""What the engines are told to force an acceptance length, to draft trees and blocks, and to fill models with random numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.sglang.effective import requested
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import UsageError

PYTHON, TARGET, DRAFTER = Path("/python"), Path("/target"), Path("/drafter")


def words_after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def speculative(drafting: Drafting, *dummy: str) -> Launch:
    return Launch("speculative", TARGET, drafting=drafting, dummy_weights=frozenset(dummy))


def test_sglang_forces_by_variables_with_the_chains_own_tokens_and_a_tree_with_fixed_ones() -> None:
    chain = SGLang().env(speculative(Drafting("eagle3", DRAFTER, 3, forced_accept_len=2.5)))
    assert (chain["SGLANG_SIMULATE_ACC_LEN"], chain["SGLANG_SIMULATE_ACC_TOKEN_MODE"]) == ("2.5", "real-draft-token")
    tree = SGLang().env(speculative(Drafting("eagle3", DRAFTER, 3, (4, 16), 2.5)))
    assert tree["SGLANG_SIMULATE_ACC_TOKEN_MODE"] == "fixed"
    free = SGLang().env(speculative(Drafting("eagle3", DRAFTER, 3)))
    assert not [name for name in free if "SIMULATE" in name]


def test_sglang_gives_a_tree_its_width_and_a_block_one_number() -> None:
    tree = SGLang().argv(PYTHON, speculative(Drafting("eagle3", DRAFTER, 3, (4, 16))), 1)
    numbers = [words_after(tree, f"--speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert numbers == ["3", "4", "16"]
    block = SGLang().argv(PYTHON, speculative(Drafting("dflash", DRAFTER, 15)), 1)
    assert words_after(block, "--speculative-algorithm") == "DFLASH" and words_after(block, "--speculative-num-draft-tokens") == "16"
    assert "--speculative-num-steps" not in block and "depth" not in requested(speculative(Drafting("dflash", DRAFTER, 15)))


@pytest.mark.parametrize(("dummy", "target", "drafter"), [((), None, None), (("target",), "dummy", "auto"), (("drafter",), None, "dummy")])
def test_sglang_dummy_weights_of_one_model_leave_the_other_alone(dummy: tuple[str, ...], target: str | None, drafter: str | None) -> None:
    argv = SGLang().argv(PYTHON, speculative(Drafting("eagle3", DRAFTER, 3), *dummy), 1)
    found = [words_after(argv, flag) if flag in argv else None for flag in ("--load-format", "--speculative-draft-load-format")]
    assert found == [target, drafter]


def test_vllm_forces_in_its_speculative_config_and_drafts_no_trees() -> None:
    forced = Drafting("eagle3", DRAFTER, 3, forced_accept_len=2.5)
    argv = VLLM().argv(PYTHON, speculative(forced, "target", "drafter"), 1)
    config = json.loads(words_after(argv, "--speculative-config"))
    assert config["rejection_sample_method"] == "synthetic" and config["synthetic_acceptance_length"] == 2.5
    assert "draft_load_config" not in config and words_after(argv, "--load-format") == "dummy"  # the drafter follows the target
    alone = VLLM().argv(PYTHON, speculative(forced, "drafter"), 1)
    assert json.loads(words_after(alone, "--speculative-config"))["draft_load_config"] == {"load_format": "dummy"}
    assert "--load-format" not in alone
    with pytest.raises(UsageError, match="no trees"):
        VLLM().argv(PYTHON, speculative(Drafting("eagle3", DRAFTER, 3, (4, 16))), 1)


def test_a_length_that_no_round_can_have_is_refused() -> None:
    with pytest.raises(AssertionError):
        Drafting("eagle3", DRAFTER, 3, forced_accept_len=4.5)
