"""The ledger: every key, shape and type of a drafter folder against what this engine version's loader expects. Headers only.

SGLang's loaders drop a tensor that they do not know and never report one that is missing; vLLM's raise on an unknown one and do not
look for missing ones. Tables: drafter_keys.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from draftsmith.check.drafter_files import file_findings, read_tensors
from draftsmith.check.head import Head, flag, head_of, keys_table
from draftsmith.check.registry import registry_findings
from draftsmith.check.subject import Subject
from draftsmith.check.tapping import num_features
from draftsmith.check.vocabulary import embedding_findings, head_type_findings, vocabulary_findings
from draftsmith.findings import Finding
from draftsmith.models.config_keys import differs_by_layer
from draftsmith.models.text_config import text_part

FLOATS = {"F32", "F16", "BF16", "F64"}
INTEGERS = {"d2t": {"I64", "I32"}, "t2d": {"BOOL", "U8", "I64", "I32"}}
LAYERS_NAMED_LAYERS = Version("0.5.12")  # SGLang: before, the one layer was called midlayer and nothing else was known
FIX_EXPORT = "export the drafter again for this engine, or convert its names"


@dataclass(frozen=True)
class Expected:
    """One tensor that the loader knows."""

    shape: tuple[int, ...] | None  # None when a size is not known or the tensor is not audited
    optional: bool


def ledger_findings(subject: Subject) -> list[Finding]:
    """Files, class, config switches, keys, shapes, types, vocabulary map and embedding of the subject's drafter."""
    dummy = flag(subject, "speculative-draft-load-format", "load-format") == "dummy"
    findings, tensors = read_tensors(subject.drafter_folder, dummy)
    if subject.drafter_folder is not None:
        findings += file_findings(subject.drafter_folder)
    head = head_of(subject)
    if head is None:
        return findings
    findings += registry_findings(subject, head)
    varied = differs_by_layer(head.config)
    if tensors and (head.layout is None or varied):
        what = "sizes that differ by layer" if varied else head.architecture or "this class"
        evidence = f"no ledger is kept for {what}: {len(tensors)} tensors were not compared"
        findings.append(Finding("DS339", "info", evidence, "a missing or unknown tensor would not be seen here", "nothing"))
    elif tensors:
        findings += key_findings(subject, head, tensors)
        findings += vocabulary_findings(subject, head, tensors) + embedding_findings(subject, head, tensors)
        findings += head_type_findings(subject, tensors)
    return findings


# --- what is expected ------------------------------------------------------------------------------------------------


def sizes_of(subject: Subject, head: Head) -> dict[str, int]:
    """The sizes that drafter_keys.yaml names, as far as the configs give them."""
    config, target = head.config, text_part(subject.target)
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    head_size = config.get("head_dim") or (hidden // heads if hidden and heads else None)
    rope, nope, value = (config.get(key) for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    kv_heads = config.get("num_key_value_heads") or heads
    values = {
        "H": hidden,
        "T": config.get("target_hidden_size") or target.get("hidden_size") or hidden,
        "A": num_features(subject, head),
        "I": config.get("intermediate_size_mlp") if config.get("model_type") == "llama4_text" else config.get("intermediate_size"),
        "E": head_size,
        "Q": heads * head_size if heads and head_size else None,
        "K": kv_heads * head_size if kv_heads and head_size else None,
        "V": config.get("vocab_size"),
        "W": config.get("draft_vocab_size") or config.get("vocab_size"),
        "QR": config.get("q_lora_rank"),
        "KR": config.get("kv_lora_rank"),
        "R": rope,
        "N": heads * (nope + rope) if heads and nope and rope else None,
        "B": heads * (nope + value) if heads and nope and value else None,
        "O": heads * value if heads and value else None,
    }
    return {name: int(value) for name, value in values.items() if value is not None}


def dimension(text: Any, sizes: Mapping[str, int]) -> int | None:
    """`KR+R` or `2*H` in numbers; None when a size is not known."""
    total = 0
    for term in str(text).split("+"):
        product = 1
        for factor in term.split("*"):
            value = int(factor) if factor.isdigit() else sizes.get(factor)
            if value is None:
                return None
            product *= value
        total += product
    return total


def features(subject: Subject, head: Head) -> set[str]:
    """The `if` conditions of drafter_keys.yaml that hold. Switches count only where the engine implements them."""
    config = head.config
    sglang = subject.family == "sglang"
    vocabulary = text_part(subject.target).get("vocab_size") or config.get("vocab_size")
    reduced = bool(config.get("draft_vocab_size") and vocabulary and config["draft_vocab_size"] < vocabulary)
    biased = not sglang and bool(config.get("attention_bias"))
    holds = {
        "fc_bias": sglang and bool(config.get("bias")),
        "norm_before_fc": bool(head.eagle_config.get("norm_before_fc", config.get("norm_before_fc"))),
        "fc_norm": bool(config.get("fc_norm") or (sglang and config.get("use_aux_norm"))),
        "own_head": reduced or (sglang and config.get("draft_vocab_size") is not None and not config.get("tie_word_embeddings")),
        "reduced": reduced,
        "attention_bias": biased,
        "o_bias": biased and "qwen3" not in (head.architecture + str(config.get("model_type"))).lower(),  # Llama's layer has it there too
        "qk_norm": "Qwen3" in head.architecture,
    }
    return {name for name, value in holds.items() if value}


def expected_tensors(subject: Subject, head: Head) -> dict[str, Expected]:
    """Name -> what the loader expects, for this layout, config and engine version."""
    sizes, active = sizes_of(subject, head), features(subject, head)
    layers = int(head.config.get("num_hidden_layers") or 1)
    spans = {"{layer}": range(layers), "{later}": range(1, layers), "{tap}": range(sizes.get("A", 3))}
    expected: dict[str, Expected] = {}
    for pattern, rule in keys_table()["layouts"][head.layout].items():
        optional = rule.get("optional") in (True, subject.family)
        needed = "if" not in rule or rule["if"] in active
        if not needed and not optional:
            continue
        shape = tuple(dimension(part, sizes) for part in rule["shape"]) if "shape" in rule else None
        known = None if shape is None or None in shape else tuple(part for part in shape if part is not None)
        mark = next((mark for mark in spans if mark in pattern), None)
        for name in [pattern.replace(mark, str(number)) for number in spans[mark]] if mark else [pattern]:
            expected[name] = Expected(known, optional and not ("if" in rule and needed))
    return expected


# --- what is there ---------------------------------------------------------------------------------------------------


def canonical(name: str, subject: Subject, layout: str) -> str:
    """A checkpoint's name as the loader would call it, in the spelling of drafter_keys.yaml."""
    table = keys_table()
    if layout in table["prefix"][subject.family]:
        name = name.removeprefix("model.")
    for old, new in table["renames"][subject.family][layout].items():
        name = name.replace(old, new)
    return name


def is_extension(name: str, layout: str) -> bool:
    table = keys_table()
    patterns = [*table["ignored"], *table["extensions"].get(layout, [])]
    return any(re.match(pattern, name) for pattern in patterns)


def key_findings(subject: Subject, head: Head, tensors: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Missing, unknown, misnamed, misshapen and mistyped tensors."""
    assert head.layout is not None
    expected = expected_tensors(subject, head)
    old_names = subject.family == "sglang" and head.layout == "eagle3" and subject.version < LAYERS_NAMED_LAYERS
    misnamed = [name for name in tensors if old_names and "layers.0." in name]
    found = {canonical(name, subject, head.layout): name for name in tensors if name not in misnamed}
    quantised = {quantised_weight(name) for name in found} - {None}
    there = {*found, *quantised, *(name.removeprefix("model.") for name in misnamed)}
    missing = [name for name, rule in expected.items() if not rule.optional and name not in there]
    unknown = [
        original
        for name, original in found.items()
        if name not in expected and quantised_weight(name) not in expected and not is_extension(name, head.layout)
    ]
    findings = [*misnamed_findings(subject, misnamed), *missing_findings(subject, head, missing), *unknown_findings(subject, unknown)]
    wrong = list(misshapen(expected, found, tensors))
    if wrong:
        evidence = f"{len(wrong)} tensor{'s have' if len(wrong) > 1 else ' has'} another shape than the config says: {'; '.join(wrong[:4])}"
        fix = "make config.json describe these weights: hidden_size, head_dim, draft_vocab_size, num_aux_hidden_states and the tap ids"
        findings.append(Finding("DS323", "error", evidence, "the loader stops at the first of them", fix))
    types = {name: tensors[original]["dtype"] for name, original in found.items() if name in expected}
    wrong = [f"{found[name]} is {dtype}" for name, dtype in types.items() if not right_type(name, dtype)]
    if wrong:
        evidence = f"unexpected type: {'; '.join(wrong[:4])}"
        fix = "write floating tensors as BF16, F16 or F32, d2t as I64, t2d as BOOL"
        findings.append(Finding("DS324", "error", evidence, "the weights are read as something else than they are", fix))
    return findings


def quantised_weight(name: str) -> str | None:
    """`x.weight` for `x.weight_scale` and the like; None for other names."""
    module, _, last = name.rpartition(".")
    return f"{module}.weight" if last in keys_table()["quantised"] else None


def right_type(name: str, dtype: str) -> bool:
    return dtype in INTEGERS.get(name, FLOATS) or (name not in INTEGERS and dtype.startswith("F8"))


def misshapen(expected: Mapping[str, Expected], found: Mapping[str, str], tensors: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, original in found.items():
        rule = expected.get(name)
        if rule is not None and rule.shape is not None and tuple(tensors[original]["shape"]) != rule.shape:
            yield f"{original} is {list(tensors[original]['shape'])}, expected {list(rule.shape)}"


def misnamed_findings(subject: Subject, misnamed: list[str]) -> list[Finding]:
    if not misnamed:
        return []
    evidence = f"{len(misnamed)} tensors are named layers.0.*, SGLang {subject.version} calls the layer midlayer"
    consequence = "it drops them without a word: the layer keeps random weights and accept_len is about 1.00"
    return [Finding("DS322", "error", evidence, consequence, "rename layers.0.* to midlayer.*, or use SGLang 0.5.12 or newer")]


def missing_findings(subject: Subject, head: Head, missing: list[str]) -> list[Finding]:
    engine = "SGLang" if subject.family == "sglang" else "vLLM"
    findings = []
    if "lm_head.weight" in missing:
        findings.append(no_head_finding(subject, head))
    if "d2t" in missing:
        evidence = f"draft_vocab_size {head.config['draft_vocab_size']} is smaller than the vocabulary, and the folder has no d2t"
        consequence = f"{engine} takes draft ids for target ids: every draft is another token than was meant"
        findings.append(Finding("DS326", "error", evidence, consequence, "write d2t: target id minus draft id, int64, one per draft token"))
    later = [name for name in missing if re.match(r"layers\.[1-9]\d*\.(input_layernorm|hidden_norm)", name)]
    if later:
        evidence = f"{engine} normalises the input of layers after the first with {later[0].split('.')[2]}, which {later[0]} would hold"
        fix = "write the norm of layers after the first under both names, input_layernorm and hidden_norm"
        findings.append(Finding("DS334", "error", evidence, "that norm stays at ones: another network than was trained", fix))
    rest = [name for name in missing if name not in ("lm_head.weight", "d2t", *later)]
    if rest:
        evidence = f"{len(rest)} tensor{'s are' if len(rest) > 1 else ' is'} missing: {shortened(rest)}"
        consequence = f"{engine} does not report it: they keep the values that they were created with"
        findings.append(Finding("DS320", "error", evidence, consequence, FIX_EXPORT))
    return findings


def no_head_finding(subject: Subject, head: Head) -> Finding:
    size = head.config.get("draft_vocab_size")
    evidence = f"the folder has no lm_head.weight, draft_vocab_size is {size}"
    if subject.family == "sglang":
        consequence = "SGLang leaves the head random: it starts, answers, and accept_len is 1.00"
        fix = "put the head into the folder, or set draft_vocab_size to null to borrow the target's"
        return Finding("DS325", "error", evidence, consequence, fix)
    consequence = "vLLM takes the first rows of the target's head in its place: it runs, and accept_len is 1.00"
    fix = "put the head into the folder, or leave out draft_vocab_size and d2t to borrow the target's"
    return Finding("DS325", "error", evidence, consequence, fix)


def unknown_findings(subject: Subject, unknown: list[str]) -> list[Finding]:
    if not unknown:
        return []
    evidence = f"{len(unknown)} tensor{'s' if len(unknown) > 1 else ''} that the loader does not know: {shortened(unknown)}"
    if subject.family == "vllm":
        return [Finding("DS321", "error", evidence, "vLLM stops: there is no module or parameter of that name", FIX_EXPORT)]
    return [Finding("DS321", "warning", evidence, "SGLang drops them without a word", FIX_EXPORT)]


def shortened(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
