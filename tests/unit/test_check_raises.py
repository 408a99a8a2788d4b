"""check: the engine's own error beside a finding, and rules that rest on the engines' sources rather than on a recorded answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from check_launches import CHAIN, DFLASH, HEAD, LLAMA, bad, one, sglang, vllm
from drafter_folders import subject_for
from packaging.version import Version

from draftsmith.check.command import check_launch
from draftsmith.check.context import context_findings
from draftsmith.check.inputs import Asked
from draftsmith.check.raises import matches, messages, raised
from draftsmith.check.rules import check_subject
from draftsmith.check.since import table
from draftsmith.engines import environments

HYBRID = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "vocab_size": 248320}
NEXTN = CHAIN.replace("EAGLE3 --speculative-draft-model-path H", "NEXTN")
VERIFIER = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "num_attention_heads": 64, "head_dim": 128, "num_hidden_layers": 64}
LAYER = {"hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 1, "model_type": "llama"}
SPECULATOR = {
    "speculators_model_type": "eagle3",
    "transformer_layer_config": LAYER,
    "speculators_config": {"verifier": {"name_or_path": "Qwen/Qwen3-32B"}, "proposal_methods": [{"speculative_tokens": 3}]},
}


def test_messages_by_version_and_by_pydantic_class() -> None:
    assert raised("sglang", Version("0.5.11"), "algorithm", name="MEDUSA", upper="MEDUSA").startswith("SystemExit: argument")
    assert raised("sglang", Version("0.5.12"), "algorithm", name="medusa", upper="MEDUSA").endswith("name: MEDUSA")
    assert raised("vllm", None, "too_low") == (
        "ValidationError: 1 validation error for SpeculativeConfig\nnum_speculative_tokens\n  Input should be greater than 0"
    )
    assert "VllmConfig\n  Value error, Model Runner V2" in raised("vllm", None, "no_triton")
    with pytest.raises(AssertionError, match="differs between versions"):
        raised("sglang", None, "pages")


def test_matching_takes_the_class_and_the_whole_message_unless_more_follows() -> None:
    assert matches("AssertionError", "AssertionError", "") and not matches("AssertionError", "AssertionError", "because")
    assert matches("ValueError: a ...", "ValueError", "a b") and not matches("ValueError: a", "ValueError", "a b")
    assert not matches("ValueError: a ...", "TypeError", "a b") and matches("SystemExit: ...", "SystemExit", "anything")


def test_rows_start_with_the_oldest_release_that_they_can_hold_in() -> None:
    for family in ("sglang", "vllm"):
        for name, rows in messages()[family].items():
            since = [Version(row["since"]) for row in rows] if isinstance(rows, list) else []
            assert since == sorted(set(since)), name
            assert all(first >= Version(table(family)["read"][0]) for first in since), name


def test_the_error_is_shown_on_one_line(tmp_path: Path) -> None:
    command = """vllm serve T --speculative-config '{"method": "eagle3", "model": "D", "num_speculative_tokens": 0}'"""
    document, text, code = check_launch(Asked(engine="vllm==0.32.0"), [command])
    shown = " ".join(text.split())  # wrapped at the terminal's width
    assert code == 4 and "raises: ValidationError: 1 validation error for SpeculativeConfig num_speculative_tokens Input should" in shown
    assert next(finding["raises"] for finding in document["findings"] if finding["code"] == "DS451").count("\n") == 2


@pytest.mark.parametrize(
    ("flags", "version", "refused"),
    [
        ("", "0.5.9", False),
        ("", "0.5.10", True),
        ("", "0.5.13", True),
        ("", "0.5.14", False),
        ("--disable-radix-cache", "0.5.12", False),
        ("--mamba-scheduler-strategy extra_buffer", "0.5.12", False),
        ("--mamba-scheduler-strategy no_buffer", "0.5.12", True),
    ],
)
def test_hybrid_targets_and_the_radix_cache(flags: str, version: str, refused: bool) -> None:
    found = sglang(f"{NEXTN} {flags}", version, target=HYBRID)
    assert ("DS466" in bad(found)) is refused
    assert "DS466" not in bad(sglang(CHAIN, version))


@pytest.mark.parametrize(
    ("version", "flags", "gib", "severity"),
    [
        ("0.27.1", "", None, "warning"),  # 8192 tokens for 1024 requests, or 2048 for 256
        ("0.27.1", "--max-num-seqs 512 --max-num-batched-tokens 2048", None, "error"),
        ("0.27.1", "", 24, "error"),
        ("0.27.1", "--max-num-batched-tokens 32768", 80, None),  # as the drafters' authors write it
        ("0.27.1", "--max-num-batched-tokens 4096", None, "warning"),  # enough for 256 requests, not for 1024
        ("0.27.1", "--max-num-seqs 64", 24, None),
        ("0.28.0", "", None, None),
        ("0.28.0", "--max-num-batched-tokens 15", None, "error"),
    ],
)
def test_slots_of_a_block(version: str, flags: str, gib: int | None, severity: str | None) -> None:
    config = '{"method": "dflash", "model": "D", "num_speculative_tokens": 15}'
    found = vllm(config, version, flags, drafter=DFLASH, gpu_bytes=gib * 2**30 if gib else None)
    assert [f.severity for f in found.findings if f.code == "DS447"] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("flags", "version", "message"),
    [
        (CHAIN, "0.5.9", "overlap schedule, speculative decoding, mixed chunked prefill."),
        (CHAIN, "0.5.20", "overlap schedule, speculative decoding"),
        (CHAIN, "0.5.21", "only supports EAGLE (non-multi-layer) speculative decoding"),
        (f"{CHAIN} --disaggregation-mode prefill", "0.5.23", "only supports EAGLE (non-multi-layer) speculative decoding"),
        (NEXTN, "0.5.23", "only supported on prefill nodes (disaggregation-mode=prefill)"),
        (f"{NEXTN} --disaggregation-mode prefill", "0.5.23", None),
        (f"{NEXTN} --disaggregation-mode prefill", "0.5.20", "overlap schedule, speculative decoding"),
        ("--algo UNO --uno-lora-path L --speculative-num-draft-tokens 4", "0.5.23", "UNO requires TP=PP=1."),
    ],
)
def test_pipeline_parallelism_in_sglang(flags: str, version: str, message: str | None) -> None:
    """After the arguments are resolved, so that the effective values are there; read in `check_server_args` of each release."""
    found = sglang(f"{flags} --pp-size 2", version)
    said = [finding.raises for finding in found.findings if finding.code == "DS425"]
    assert [text.endswith(message or "") for text in said] == ([True] if message else [])
    assert (found.effective is None) is ("UNO" in flags)


def test_pipeline_parallelism_in_vllm() -> None:
    for config, version, refused in (
        ('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}', "0.29.0", True),
        ('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}', "0.30.0", False),
        ('{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}', "0.29.0", False),
    ):
        assert ("DS425" in bad(vllm(config, version, "-pp 2", target=LLAMA))) is refused, config


def test_the_targets_own_layer_is_no_eagle3_head() -> None:
    target = {"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280}
    algorithm = NEXTN.replace("NEXTN", "EAGLE3")
    assert "NEXTN" in one(sglang(algorithm, target=target), "DS417").fix
    assert bad(sglang(NEXTN, target=target)) == []


def test_a_dash_that_is_no_hyphen_is_read_as_it_is_meant() -> None:
    command = f"sglang serve --model-path X {CHAIN}".replace("--algo", "\u2013speculative-algorithm")
    document, _, code = check_launch(Asked(engine="sglang==0.5.17"), [command])
    errors = [finding["code"] for finding in document["findings"] if finding["severity"] == "error"]
    assert code == 4 and errors == ["DS430"] and document["requested"]["speculative_algorithm"] == "EAGLE3"


def test_wrong_keys_are_said_once_and_counted_as_pydantic_does() -> None:
    found = vllm('{"method": "eagle3", "draft_model": "H", "num_spec_tokens": 3}')
    wrong = [finding.raises for finding in found.findings if finding.severity == "error"]
    assert bad(found) == ["DS450", "DS450"] and wrong == ["ValidationError: 2 validation errors for SpeculativeConfig ..."] * 2


def test_targets_of_vllm_by_release() -> None:
    config = '{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}'
    target = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61}
    for version, severity in (("0.17.1", ["error"]), ("0.18.1", []), ("0.32.0", [])):
        subject = subject_for(f"vllm=={version}", None, flags={"speculative-config": config}, target=target)
        assert [f.severity for f in check_subject(subject).findings if f.code == "DS204"] == severity, version


def test_a_published_drafter_that_is_not_here() -> None:
    flags = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}
    for length, expected in ((10000, [("DS360", "warning")]), (2048, [])):
        subject = subject_for("sglang==0.5.17", None, flags={**flags, "context-length": length})
        assert [(f.code, f.severity) for f in context_findings(subject)] == expected


def test_a_speculator_without_the_head_size_of_its_target(tmp_path: Path) -> None:
    """speculators#149: Qwen3-32B has heads of 128 and a width of 5120 for 64 of them. Configs written for this test."""
    for name, config in (("speculator", SPECULATOR), ("target", VERIFIER)):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    asked = Asked(engine="vllm==0.32.0", target=str(tmp_path / "target.json"), drafter=str(tmp_path / "speculator.json"))
    document, _, _ = check_launch(asked, ["vllm serve RedHatAI/Qwen3-32B-speculator.eagle3 -tp 2"])
    found = {finding["code"]: finding for finding in document["findings"]}
    assert "head_dim: 128" in found["DS365"]["fix"] and document["effective"]["num_speculative_tokens"] == 3
    right = {**SPECULATOR, "transformer_layer_config": {**LAYER, "head_dim": 128}}
    (tmp_path / "speculator.json").write_text(json.dumps(right))
    document, _, _ = check_launch(asked, ["vllm serve RedHatAI/Qwen3-32B-speculator.eagle3 -tp 2"])
    assert "DS365" not in {finding["code"] for finding in document["findings"]}


def test_pins_of_a_pasted_commands_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when its environment was added."""
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    for name, version, requires in (("sglang", "0.5.17", "torch==2.13.0"), ("torch", "2.9.1", "")):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        lines = [f"Name: {name}", f"Version: {version}", *([f"Requires-Dist: {requires}"] if requires else [])]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines]))
    (tmp_path / "bin").mkdir()
    command = [f"sglang serve --model-path X {CHAIN}"]
    asked = Asked(engine="sglang==0.5.17")
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path / "home"))
    assert "DS220" not in {finding["code"] for finding in check_launch(asked, command)[0]["findings"]}
    monkeypatch.setattr(environments, "python_of", lambda name: tmp_path / "bin" / "python")
    found = {finding["code"]: finding for finding in check_launch(asked, command)[0]["findings"]}
    assert "2.9.1" in found["DS220"]["evidence"]


def test_flags_without_their_value() -> None:
    assert "expected one argument" in one(sglang(f"{CHAIN} --max-running-requests"), "DS435").raises
    assert bad(sglang(f"{HEAD} --speculative-num-steps"))[:1] == ["DS435"]
    config = '{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}'
    assert bad(vllm(config, flags="--max-num-seqs")) == ["DS435"]
    assert bad(vllm(config, flags="--tensor-parallel-size two")) == ["DS435"]
    for fine in ("--enable-prefix-caching", "--max-model-len auto", "--max-model-len 8k", "--trust-remote-code"):
        assert bad(vllm(config, flags=fine)) == [], fine
