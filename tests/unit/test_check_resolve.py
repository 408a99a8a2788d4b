"""check: from SGLang's flags to effective values, by version. Each case is something that users ran into."""

from __future__ import annotations

from typing import Any

import pytest
from check_launches import (
    CHAIN,
    DEEPSEEK,
    DFLASH,
    DSPARK,
    EAGLE1_HEAD,
    EAGLE3_HEAD,
    HEAD,
    LLAMA,
    QWEN,
    SGLANG_VERSIONS,
    bad,
    numbers,
    one,
    sglang,
)

# --- SGLang: the stories ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_draft_tokens_alone_die_in_a_bare_assert(version: str) -> None:
    found = sglang(f"{HEAD} --speculative-num-draft-tokens 3", version)
    finding = one(found, "DS411")
    assert found.effective is None and "bare AssertionError" in finding.consequence and "--speculative-num-steps" in finding.fix


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
@pytest.mark.parametrize("flags", ["--speculative-num-steps 1 --speculative-num-draft-tokens 3", "--speculative-num-steps 15"])
def test_steps_without_topk_compare_none(version: str, flags: str) -> None:
    found = sglang(f"{HEAD} {flags}", version)
    finding = one(found, "DS411")
    assert found.effective is None and "TypeError" in finding.consequence and "--speculative-eagle-topk" in finding.fix


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_sixteen_asked_and_two_verified(version: str) -> None:
    found = sglang(f"{HEAD} --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16", version)
    finding = one(found, "DS412")
    assert numbers(found) == (1, 1, 2) and finding.severity == "error" and "2 are verified" in finding.consequence
    assert found.requested["speculative_num_draft_tokens"] == "16"


def test_draft_tokens_without_an_algorithm_do_nothing_and_would_not_work() -> None:
    found = sglang("--speculative-num-draft-tokens 3")
    assert bad(found) == ["DS439", "DS411"] and found.effective == {"speculative_algorithm": None}
    assert bad(sglang("--speculative-attention-mode decode")) == []


@pytest.mark.parametrize(
    ("target", "version", "expected"),
    [(LLAMA, "0.5.23", (5, 4, 8)), (QWEN, "0.5.7", (5, 4, 8)), (QWEN, "0.5.8", (3, 1, 4)), (DEEPSEEK, "0.5.3", (3, 1, 4))],
)
def test_nothing_given_is_chosen_by_target_and_version(target: dict[str, Any], version: str, expected: tuple[int, ...]) -> None:
    found = sglang(HEAD, version, target=target)
    assert numbers(found) == expected and one(found, "DS414").severity == "warning"


def test_a_tree_without_draft_tokens_starts_and_dies() -> None:
    found = sglang(f"{HEAD} --speculative-num-steps 3 --speculative-eagle-topk 4")
    assert numbers(found) == (3, 4, None) and bad(found) == ["DS411"]


def test_a_tree_has_so_many_nodes() -> None:
    assert bad(sglang(f"{HEAD} --speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8")) == ["DS413"]
    assert bad(sglang(f"{HEAD} --speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64")) == []


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_a_chain_that_says_all_three_is_silent(version: str) -> None:
    found = sglang(CHAIN, version, drafter=EAGLE3_HEAD)
    assert numbers(found) == (3, 1, 4) and bad(found) == [] and not [f for f in found.findings if f.severity == "warning"]
    assert found.effective is not None and found.effective["max_running_requests"] == 48
    assert "48" in one(found, "DS403").evidence


# --- SGLang: algorithms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "version", "effective"),
    [
        ("NEXTN", "0.5.3", "EAGLE"),
        ("nextn", "0.5.12", "EAGLE"),
        ("nextn", "0.5.11", None),
        ("DFLASH", "0.5.10", None),
        ("DSPARK", "0.5.15", None),
        ("DSPARK", "0.5.16", "DSPARK"),
        ("EAGLE4", "0.5.23", None),
    ],
)
def test_names_of_algorithms(algorithm: str, version: str, effective: str | None) -> None:
    found = sglang(f"--algo {algorithm} --speculative-draft-model-path H", version, target=DEEPSEEK)
    assert (found.effective or {}).get("speculative_algorithm") == effective
    assert bad(found) == ([] if effective else ["DS415"])


@pytest.mark.parametrize(
    ("algorithm", "drafter", "code"),
    [
        ("EAGLE", EAGLE3_HEAD, "DS417"),
        ("EAGLE3", EAGLE1_HEAD, "DS417"),
        ("EAGLE3", DFLASH, "DS417"),
        ("EAGLE", DFLASH, "DS417"),
        ("DFLASH", EAGLE3_HEAD, "DS417"),
        ("STANDALONE", EAGLE3_HEAD, "DS417"),
        ("EAGLE3", EAGLE3_HEAD, None),
        ("EAGLE", EAGLE1_HEAD, None),
        ("DFLASH", DFLASH, None),
        ("STANDALONE", LLAMA, None),
        ("EAGLE", {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}, None),
        ("EAGLE3", {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "draft_vocab_size": 32000}, None),
    ],
)
def test_the_algorithm_must_fit_the_drafter(algorithm: str, drafter: dict[str, Any], code: str | None) -> None:
    three = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    flags = f"--algo {algorithm} --speculative-draft-model-path H" + ("" if algorithm == "DFLASH" else f" {three}")
    found = [code for code in bad(sglang(flags, drafter=drafter)) if code != "DS443"]
    assert found == ([code] if code else [])


def test_an_eagle3_head_under_eagle_is_said_to_be_silent() -> None:
    finding = one(sglang(CHAIN.replace("EAGLE3", "EAGLE"), drafter=EAGLE3_HEAD), "DS417")
    assert "starts without an error" in finding.consequence and finding.fix == "--speculative-algorithm EAGLE3"


@pytest.mark.parametrize(("target", "codes"), [(LLAMA, ["DS416"]), (QWEN, ["DS416"]), (DEEPSEEK, []), ({}, [])])
def test_a_missing_drafter(target: dict[str, Any], codes: list[str]) -> None:
    flags = "--algo EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    assert bad(sglang(flags, target=target)) == codes


@pytest.mark.parametrize(
    ("flags", "tokens", "codes"),
    [
        ("", 16, []),
        ("--speculative-num-draft-tokens 16", 16, []),
        ("--speculative-num-draft-tokens 15", 15, [("DS419", "warning")]),
        ("--speculative-dflash-block-size 8", 8, [("DS419", "warning")]),
        ("--speculative-dflash-block-size 8 --speculative-num-draft-tokens 16", None, [("DS418", "error")]),
        ("--speculative-num-steps 3", 16, [("DS421", "warning")]),
        ("--speculative-draft-window-size 8", None, [("DS441", "error")]),
        ("--enable-dp-attention", None, [("DS424", "error")]),
        ("--pp-size 2", None, [("DS425", "error")]),
    ],
)
def test_dflash(flags: str, tokens: int | None, codes: list[tuple[str, str]]) -> None:
    found = sglang(f"--algo DFLASH --speculative-draft-model-path H {flags}", drafter=DFLASH)
    seen = [(f.code, f.severity) for f in found.findings if (f.severity != "info" and f.code not in ("DS419",)) or f.code == "DS419"]
    assert [entry for entry in seen if entry[1] != "info" and (tokens is not None or entry[0] != "DS419")] == codes
    assert (found.effective is None) == (tokens is None)
    if found.effective is not None:
        assert numbers(found) == (1, 1, tokens)


def test_dflash_names_the_other_engines_number() -> None:
    finding = one(sglang("--algo DFLASH --speculative-draft-model-path H --speculative-num-draft-tokens 15", drafter=DFLASH), "DS419")
    assert "vLLM" in finding.consequence and finding.fix == "--speculative-num-draft-tokens 16"


def test_dflash_with_attention_dp_needs_the_newest_release_and_a_flag() -> None:
    flags = "--algo DFLASH --speculative-draft-model-path H --enable-dp-attention"
    assert bad(sglang(flags, "0.5.22", drafter=DFLASH)) == ["DS424"]
    assert bad(sglang(flags, "0.5.23", drafter=DFLASH)) == ["DS424"]
    assert bad(sglang(f"{flags} --enable-dp-lm-head", "0.5.23", drafter=DFLASH)) == []


@pytest.mark.parametrize(
    ("flags", "tokens", "codes"),
    [("", 8, []), ("--speculative-num-draft-tokens 8", 8, []), ("--speculative-num-draft-tokens 7", None, ["DS420"])],
)
def test_dspark_verifies_gamma_plus_one(flags: str, tokens: int | None, codes: list[str]) -> None:
    found = sglang(f"--algo DSPARK --speculative-draft-model-path H {flags}", drafter=DSPARK)
    assert bad(found) == codes and (found.effective is None or found.effective["speculative_num_draft_tokens"] == tokens)


def test_ngram() -> None:
    assert numbers(sglang("--algo NGRAM", "0.5.13")) == (None, 10, 12)
    assert numbers(sglang("--algo NGRAM", "0.5.14")) == (1, 10, 12)
    assert numbers(sglang("--algo NGRAM --speculative-ngram-max-match-window-size 8", "0.5.9")) == (None, 10, 8)
    assert bad(sglang("--algo NGRAM --enable-dp-attention")) == ["DS424"]
    assert bad(sglang("--algo NGRAM --page-size 64 --attention-backend fa3")) == ["DS423"]
    assert bad(sglang("--algo NGRAM", "0.5.15", cpu_build=True)) == ["DS426"] and bad(sglang("--algo NGRAM", cpu_build=True)) == []


def test_standalone() -> None:
    chain = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    flags = f"--algo STANDALONE --speculative-draft-model-path H {chain}"
    assert bad(sglang(flags, drafter=QWEN)) == ["DS443"] and bad(sglang(flags, drafter=LLAMA)) == []
    assert bad(sglang(f"{flags} --enable-dp-attention", drafter=LLAMA)) == ["DS424"]


def test_a_gemma_assistant_changes_the_algorithm() -> None:
    assistant = {"architectures": ["Gemma4AssistantForCausalLM"]}
    found = sglang("--algo NEXTN --speculative-draft-model-path H", drafter=assistant)
    assert found.effective is not None and found.effective["speculative_algorithm"] == "FROZEN_KV_MTP" and bad(found) == []
    assert bad(sglang(HEAD, drafter=assistant)) == ["DS417"]
