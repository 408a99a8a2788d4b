"""check: verdicts on public drafters and targets, where their configs are at hand. An error on a pair that works is a fault of a rule."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from drafter_folders import eagle3_specs, found, subject_for, write_drafter

from draftsmith.check.context import OVERRIDE, context_findings
from draftsmith.check.ledger import ledger_findings
from draftsmith.check.memory import memory_findings
from draftsmith.check.tapping import tap_findings
from draftsmith.findings import Finding, errors

DATA = Path(os.environ.get("DRAFTSMITH_SHARED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data") / "configs"
LLAMA_8B, LLAMA_70B = "meta-llama__Meta-Llama-3.1-8B", "meta-llama__Llama-3.3-70B-Instruct"
# drafter -> its target
EAGLE3 = {
    "SpecForge__llama3-8B-eagle3": LLAMA_8B,
    "SpecForge__llama3-70B-ealge3": LLAMA_70B,
    "SpecForge__qwen2.5-7b-eagle3": "Qwen__Qwen2.5-7B",
    "SpecForge__qwen3-8b-eagle3": "Qwen__Qwen3-8B",
    "SpecForge__qwen3-32b-eagle3": "Qwen__Qwen3-32B",
    "SpecForge__qwen3-30B-A3B-eagle3": "Qwen__Qwen3-30B-A3B",
    "SpecForge__qwen3-235B-A22B-eagle3": "Qwen__Qwen3-235B-A22B",
    "SpecForge__qwen3-coder-480B-A35B-instruct-eagle3": "Qwen__Qwen3-Coder-480B-A35B-Instruct",
    "SpecForge__qwen3-next-80b-a3b-eagle3": "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "SpecForge__gpt-oss-120B-eagle3": "openai__gpt-oss-120b",
    "SpecForge__gpt-oss-20B-eagle3": "openai__gpt-oss-20b",
    "SpecForge__deepseek-v3-671b-eagle3": "deepseek-ai__DeepSeek-V3",
    "SpecForge__kimi-k25-eagle3": "moonshotai__Kimi-K2.5",
    "TorchSpec__kimi_k25_eagle3_mla": "moonshotai__Kimi-K2.5",
    "TorchSpec__qwen3_8b_eagle3": "Qwen__Qwen3-8B",
}
DFLASH = {
    "SpecForge__qwen3-8b-dflash": "Qwen__Qwen3-8B",
    "SpecForge__qwen3.5-35b-a3b-dflash": "Qwen__Qwen3.5-35B-A3B",
    "SpecForge__kimi-k2.7-code-dflash": "moonshotai__Kimi-K2.6",
    "z-lab__Kimi-K2.5-DFlash.partial": "moonshotai__Kimi-K2.5",
    "z-lab__Qwen3-8B-DFlash-b16.partial": "Qwen__Qwen3-8B",
    "z-lab__Qwen3.5-27B-DFlash.partial": "Qwen__Qwen3.5-27B",
    "z-lab__gpt-oss-20b-DFlash.partial": "openai__gpt-oss-20b",
}
# pairs that cannot work, and why: (drafter, target, engine) -> codes
REFUSED = {
    ("nebius__EAGLE3-gpt-oss-20b.partial", "openai__gpt-oss-20b", "sglang==0.5.17"): {"DS333"},  # a head under LlamaForCausalLM
    ("RedHatAI__gpt-oss-20b-speculator.eagle3.partial", "openai__gpt-oss-20b", "sglang==0.5.17"): {"DS332"},
    ("issue__speculators-1065-qwen3moe-eagle3.partial", "Qwen__Qwen3-235B-A22B", "vllm==0.32.0"): {"DS356"},  # four ids, fc for three
    ("SpecForge__qwen3.5-35b-a3b-eagle3", "Qwen__Qwen3.5-35B-A3B", "sglang==0.5.17"): {"DS204"},
    ("SpecForge__qwen3-30B-A3B-eagle3.1", "Qwen__Qwen3-30B-A3B", "sglang==0.5.9"): {"DS331"},  # fc_norm and norm_output
    ("SpecForge__qwen3-8b-eagle3", "Qwen__Qwen3-32B", "sglang==0.5.17"): {"DS356"},  # another target's width
    ("TorchSpec__kimi_k25_eagle3_mla", "moonshotai__Kimi-K2.5", "sglang==0.5.11"): {"DS333"},
}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no public configs beside the checkout")


def read(kind: str, name: str) -> dict[str, Any]:
    return json.loads((DATA / kind / f"{name}.json").read_text())


def verdict(engine: str, drafter: str, target: str, method: str = "eagle3") -> list[Finding]:
    asked = {"speculative-algorithm": method.upper()} if "sglang" in engine else {"speculative-config": json.dumps({"method": method})}
    drafts, text = read("drafters", drafter), read("targets", target)
    if method == "dflash" and drafter.endswith(".partial"):  # an excerpt need not have it; without it SGLang before 0.5.18 stops (DS352)
        drafts.setdefault("num_target_layers", text.get("text_config", text)["num_hidden_layers"])
    fields = {"target": text, "flags": asked, "env": {OVERRIDE: "1"}, "gpu_bytes": 288 * 10**9, "num_gpus": 4}
    subject = subject_for(engine, drafts, **fields)
    return ledger_findings(subject) + tap_findings(subject) + context_findings(subject) + memory_findings(subject)


@pytest.mark.parametrize("engine", ["sglang==0.5.17", "sglang==0.5.23", "vllm==0.32.0"])
@pytest.mark.parametrize("drafter", EAGLE3)
def test_eagle3_drafters_have_no_error(drafter: str, engine: str) -> None:
    assert errors(verdict(engine, drafter, EAGLE3[drafter])) == []


@pytest.mark.parametrize("engine", ["sglang==0.5.12", "sglang==0.5.23", "vllm==0.32.0"])
@pytest.mark.parametrize("drafter", DFLASH)
def test_dflash_drafters_have_no_error(drafter: str, engine: str) -> None:
    assert errors(verdict(engine, drafter, DFLASH[drafter], "dflash")) == []


@pytest.mark.parametrize("case", REFUSED)
def test_pairs_that_cannot_work_are_refused_for_their_reason(case: tuple[str, str, str]) -> None:
    drafter, target, engine = case
    assert {finding.code for finding in errors(verdict(engine, drafter, target))} == REFUSED[case]


@pytest.mark.parametrize("name", ["wantsleep__OLMoE_1B_7B_Eagle3", "DFlash-v1-layout"])
def test_public_key_lists_are_layouts_that_are_known(name: str) -> None:
    """Every key that a public head ships is one of its layout, in the spelling of the table or a known other one."""
    table = yaml.safe_load((Path(__file__).resolve().parents[2] / "src/draftsmith/check/drafter_keys.yaml").read_text())
    layout = "dflash" if "DFlash" in name else "eagle3"
    patterns = [re.escape(key).replace(r"\{layer\}", "L") for key in table["layouts"][layout]]
    keys = (DATA / "keys" / f"{name}.txt").read_text().split()
    plain = [re.sub(r"layers\.(\{i\}|\d+)\.", "layers.L.", key.replace("midlayer.", "layers.0.")) for key in keys]
    known = {pattern.replace("\\", "").replace("layers.0.", "layers.L.") for pattern in patterns}
    assert set(plain) <= known


def test_a_head_that_says_eagle3_and_has_no_fc_is_refused(tmp_path: Path) -> None:
    """A public head that was printed without fc, lm_head, d2t and hidden_norm."""
    keys = (DATA / "keys" / "Tengyunw__qwen3_30b_moe_eagle3.txt").read_text().split()
    whole = eagle3_specs("layers.0.") | {"embed_tokens.weight": ("BF16", [64, 32])}
    folder = write_drafter(tmp_path / "d", {key: whole[key] for key in keys}, {"": b""})
    codes = [code for code, _ in found(ledger_findings(subject_for("sglang==0.5.17", folder)))]
    assert codes == ["DS325", "DS326", "DS320"]
