"""check: what SGLang's speculative flags do not go with, the planned load, and names of flags by version."""

from __future__ import annotations

import pytest
from check_launches import CHAIN, DEEPSEEK, EAGLE3_HEAD, HEAD, LLAMA, TREE, bad, numbers, one, sglang

# --- SGLang: around it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "version", "codes"),
    [
        ("--attention-backend trtllm_mha", "0.5.17", ["DS422"]),
        ("--decode-attention-backend trtllm_mha", "0.5.17", ["DS422"]),
        ("--attention-backend flex_attention", "0.5.17", ["DS422"]),
        ("--attention-backend flashmla", "0.5.17", ["DS423"]),
        ("--attention-backend triton --page-size 64", "0.5.12", ["DS423"]),
        ("--attention-backend triton --page-size 64", "0.5.13", []),
        ("--attention-backend fa3 --page-size 64", "0.5.5", ["DS423"]),
        ("--attention-backend fa3 --page-size 64", "0.5.6", []),
        ("--attention-backend fa3", "0.5.3", []),
        ("--page-size 64", "0.5.17", []),
        ("--pp-size 2", "0.5.17", ["DS425"]),
        ("--speculative-use-rejection-sampling", "0.5.17", ["DS438"]),
    ],
)
def test_what_a_tree_does_not_go_with(flags: str, version: str, codes: list[str]) -> None:
    assert bad(sglang(f"{TREE} {flags}", version)) == codes


@pytest.mark.parametrize(
    ("flags", "version", "env", "overlap_off"),
    [
        (CHAIN, "0.5.3", {}, True),
        (CHAIN, "0.5.6", {"SGLANG_ENABLE_SPEC_V2": "1"}, False),
        (CHAIN, "0.5.9", {}, True),
        (CHAIN, "0.5.9", {"SGLANG_ENABLE_SPEC_V2": "1"}, False),
        (CHAIN, "0.5.12", {}, False),
        (CHAIN, "0.5.12", {"SGLANG_ENABLE_SPEC_V2": "0"}, True),
        (TREE, "0.5.12", {}, True),
        (TREE, "0.5.13", {}, False),
        (CHAIN, "0.5.13", {"SGLANG_ENABLE_SPEC_V2": "false"}, True),
        (CHAIN, "0.5.14", {"SGLANG_ENABLE_SPEC_V2": "false"}, False),
    ],
)
def test_overlap_by_version_and_switch(flags: str, version: str, env: dict[str, str], overlap_off: bool) -> None:
    found = sglang(flags.replace("EAGLE3", "EAGLE"), version, env=env)
    assert found.effective is not None and found.effective["disable_overlap_schedule"] is overlap_off


def test_spec_v2_and_a_tree_stop_the_releases_that_had_it_optional() -> None:
    env = {"SGLANG_ENABLE_SPEC_V2": "True"}
    assert bad(sglang(TREE, "0.5.9", env=env)) == ["DS437"] and bad(sglang(TREE, "0.5.6", env=env)) == []
    assert one(sglang(CHAIN, "0.5.17", env=env), "DS437").severity == "info"
    assert one(sglang(CHAIN, "0.5.17", env={"SGLANG_ENABLE_SPEC_V2": "0"}), "DS437").severity == "warning"


@pytest.mark.parametrize(("version", "kept"), [("0.5.18", False), ("0.5.19", True)])
def test_mixed_chunk(version: str, kept: bool) -> None:
    found = sglang(f"{CHAIN} --enable-mixed-chunk", version)
    assert found.effective is not None and found.effective["enable_mixed_chunk"] is kept
    assert ("DS427" in [f.code for f in found.findings]) is not kept


def test_slots_and_graphs_against_the_planned_load() -> None:
    assert "48" in one(sglang(CHAIN, concurrency=64), "DS403").evidence
    assert one(sglang(CHAIN, concurrency=64), "DS403").severity == "warning"
    assert "6 each" in one(sglang(f"{CHAIN} --dp-size 8 --enable-dp-attention"), "DS403").evidence
    small = one(sglang(f"{CHAIN} --max-running-requests 64", concurrency=64, gpu_bytes=24 * 2**30), "DS429")
    assert "24" in small.evidence and "64" in small.fix
    assert "DS429" not in [f.code for f in sglang(f"{CHAIN} --max-running-requests 64", concurrency=64, gpu_bytes=80 * 2**30).findings]


def test_quantisation_is_handed_to_the_drafter_as_typed() -> None:
    assert one(sglang(f"{CHAIN} --quantization fp8", drafter=EAGLE3_HEAD), "DS407").fix.endswith("unquant")
    opted = f"{CHAIN} --quantization fp8 --speculative-draft-model-quantization unquant"
    for flags, target in ((opted, LLAMA), (CHAIN, {**LLAMA, "quantization_config": {"quant_method": "fp8"}})):
        assert "DS407" not in [f.code for f in sglang(flags, drafter=EAGLE3_HEAD, target=target).findings]


def test_adaptive() -> None:
    alone = f"{HEAD} --speculative-adaptive"
    assert numbers(sglang(alone, "0.5.17")) == (3, 1, 4) and numbers(sglang(f"{alone} --speculative-num-steps 7", "0.5.17")) == (7, 1, 8)
    assert bad(sglang(f"{alone} --speculative-num-steps 4", "0.5.17")) == ["DS440"]
    off = sglang(f"{TREE} --speculative-adaptive", "0.5.17")
    assert numbers(off) == (5, 4, 8) and one(off, "DS440").severity == "warning"


# --- names of flags --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "version", "code", "fix"),
    [
        ("--speculative-draft H", "0.5.17", "DS432", "--speculative-draft-model-path"),
        ("--cuda-graph-max-bs 64", "0.5.20", "DS432", "--cuda-graph-max-bs-decode"),
        ("--cuda-graph-max-bs 64", "0.5.13", None, ""),
        ("--speculative-algo EAGLE", "0.5.23", None, ""),
        ("--tp 8 --mem-fraction 0.8", "0.5.23", None, ""),
        ("--mamba-scheduler-strategy extra_buffer", "0.5.20", "DS431", "--mamba-radix-cache-strategy"),
        ("--speculative-num-step 3", "0.5.17", None, ""),
        ("--speculative-num-stpes 3", "0.5.17", "DS430", "--speculative-num-steps"),
        ("--speculative_num_steps 3", "0.5.17", "DS430", "--speculative-num-steps"),
        ("--num-speculative-tokens 3", "0.5.17", "DS430", "--speculative-num-steps K"),
        ("--max-model-len 4096", "0.5.17", "DS430", "--context-length"),
        ("--speculative-adaptive", "0.5.10", "DS430", "0.5.11"),
        ("--speculative-num-steps three", "0.5.17", "DS435", "--speculative-num-steps N"),
        ("--enable-dp-attention true", "0.5.17", "DS435", "alone"),
        ("--attention-backend flashinfe", "0.5.17", "DS435", "flashinfer"),
    ],
)
def test_flag_names_and_values(flags: str, version: str, code: str | None, fix: str) -> None:
    found = [f for f in sglang(flags, version, target=DEEPSEEK).findings if f.severity == "error" and f.code not in ("DS439", "DS411")]
    if code is None:
        assert found == [], found
    else:
        assert [f.code for f in found][:1] == [code] and fix in found[0].fix, found


def test_a_version_that_was_not_read_is_assumed_and_its_names_are_only_likely() -> None:
    found = sglang(f"{CHAIN} --cuda-graph-max-bs 8", "0.5.99")
    assert one(found, "DS208").severity == "info" and "0.5.23" in one(found, "DS208").evidence
    assert one(found, "DS432").severity == "warning" and bad(found) == []
    assert one(sglang(CHAIN, "0.4.6"), "DS208").severity == "warning"
    assert bad(sglang(f"{HEAD} --speculative-num-draft-tokens 3", "0.5.99")) == ["DS411"], "the logic of a triple is not a table of names"
    assert "DS208" not in [f.code for f in sglang(CHAIN, "0.5.10.post1").findings]


def test_variables_that_are_left_are_not_guessed() -> None:
    found = sglang(f"{HEAD} --speculative-num-steps $STEPS")
    assert found.effective is None and bad(found) == [] and one(found, "DS465").severity == "warning"


def test_a_misspelt_flag_is_one_error_and_nothing_takes_effect() -> None:
    """The rest is judged as if it were spelt right: no second error for what is missing then."""
    for wrong in ("--speculative-num-stpes", "--speculative_num_steps"):
        found = sglang(CHAIN.replace("--speculative-num-steps", wrong))
        assert bad(found) == ["DS430"] and found.effective is None
