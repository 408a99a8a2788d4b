"""Is the drafter's class in this engine version, and does the class implement what the config switches on? Tables: drafter_keys.yaml."""

from __future__ import annotations

from packaging.version import Version

from draftsmith.check.head import Head, keys_table
from draftsmith.check.raises import raised
from draftsmith.check.subject import Subject
from draftsmith.findings import Finding
from draftsmith.models.taps import SGLANG_ANY_NUMBER_SINCE

ENGINE = {"sglang": "SGLang", "vllm": "vLLM"}
# SGLang's names; vLLM puts Eagle in front of a plain class name and refuses these (seen in 0.27.1 to 0.32.0)
SGLANG_EAGLE = ("LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle", "MistralForCausalLMEagle")
SEEN = Version("0.27.1")
WHOLE_MODELS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")


def registry_findings(subject: Subject, head: Head) -> list[Finding]:
    """Format, class, layers and switches."""
    if head.speculators is not None and subject.family == "sglang":
        evidence = f"config.json is in speculators format ({head.speculators})"
        consequence = f"SGLang {subject.version} does not read it: no hidden_size at the top level, and a class that it does not have"
        fix = "convert the drafter to a LlamaForCausalLMEagle3 or DFlashDraftModel folder, or serve it with vLLM"
        return [Finding("DS332", "error", evidence, consequence, fix)]
    return class_findings(subject, head) + layer_findings(subject, head) + switch_findings(subject, head)


def class_findings(subject: Subject, head: Head) -> list[Finding]:
    """architectures[0] in the registry of this version."""
    engine, version = ENGINE[subject.family], subject.version
    oldest, newest = (Version(text) for text in keys_table()["read"][subject.family])
    row = keys_table()[subject.family].get(head.architecture)
    if row is not None:
        since = row.get("since")
        if since is None or version >= Version(since):
            return []
        evidence = f"{head.architecture} is in {engine}'s registry since {since}, this is {version}"
        return [Finding("DS333", "error", evidence, "the engine stops: it has no class for the drafter", f"use {engine} {since} or newer")]
    sglangs = head.architecture.removeprefix("Eagle")
    if subject.family == "vllm" and sglangs in SGLANG_EAGLE:
        evidence = f"{sglangs} is a class of SGLang"
        fix = f"write architectures: [{sglangs.removesuffix('Eagle')}]: vLLM puts Eagle in front"
        sure = "error" if version >= SEEN else "warning"
        raises = raised("vllm", None, "architecture", name=sglangs)
        return [Finding("DS333", sure, evidence, "vLLM stops: the architecture is not supported", fix, raises)]
    if head.method == "eagle" and not is_whole_model(subject, head):
        return []  # MTP modules and other heads of a target's own family: each engine maps many names
    if not subject.drafter or not (subject.drafter.get("architectures") or head.config.get("architectures")):
        evidence = "the drafter's config.json names no architectures"
        fix = "write the class that reads this layout, such as architectures: [LlamaForCausalLMEagle3]"
        return [Finding("DS333", "error", evidence, "the engine cannot choose a class for the drafter", fix)]
    exact = oldest <= version <= newest
    evidence = f"{head.architecture} is not among {engine}'s drafter classes for {head.method} (read in {oldest} to {newest})"
    if subject.family == "sglang" and head.architecture in WHOLE_MODELS:
        wanted = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3", "dflash": "DFlashDraftModel"}.get(head.method, "")
        consequence = "SGLang builds a whole language model from it; a head's tensors are dropped and its own stay random"
        return [Finding("DS333", "error", evidence, consequence, f"write architectures: [{wanted}]")]
    fix = "write the class that reads this layout into architectures, or use an engine version that has it"
    return [Finding("DS333", "error" if exact else "warning", evidence, "the engine finds no class for the drafter and stops", fix)]


def is_whole_model(subject: Subject, head: Head) -> bool:
    return subject.family == "sglang" and head.architecture in WHOLE_MODELS and head.config.get("num_hidden_layers") == 1


def layer_findings(subject: Subject, head: Head) -> list[Finding]:
    """SGLang's limits on the number of layers, and the key that its Llama head cannot do without."""
    if subject.family != "sglang" or head.layout not in ("eagle3", "eagle3_mla"):
        return []
    findings = []
    layers = head.config.get("num_hidden_layers")
    if layers is not None and layers != 1 and (head.layout == "eagle3_mla" or subject.version < SGLANG_ANY_NUMBER_SINCE):
        evidence = f"num_hidden_layers is {layers}, {head.architecture} in SGLang {subject.version} takes 1"
        findings.append(Finding("DS338", "error", evidence, "SGLang stops with a ValueError", "use one layer, or SGLang 0.5.12 or newer"))
    tied = bool(head.config.get("tie_word_embeddings"))
    if head.layout == "eagle3" and not tied and "draft_vocab_size" not in head.config:
        other = " (truncated_vocab_size is a key that SGLang does not read)" if "truncated_vocab_size" in head.config else ""
        evidence = f"config.json has no draft_vocab_size{other}"
        fix = "add draft_vocab_size: the rows of lm_head, or null to borrow the target's head"
        findings.append(Finding("DS330", "error", evidence, "SGLang stops with an AttributeError while it builds the head", fix))
    if head.layout == "eagle3" and "target_hidden_size" in head.config and head.config["target_hidden_size"] is None:
        evidence = "target_hidden_size is null"
        fix = "remove the key, or write the target's hidden_size"
        findings.append(Finding("DS330", "error", evidence, "SGLang multiplies it by the number of taps and stops with a TypeError", fix))
    return findings


def switch_findings(subject: Subject, head: Head) -> list[Finding]:
    """Config switches of EAGLE-3 heads that this version's class ignores."""
    if head.method != "eagle3" or head.layout not in ("eagle3", "eagle3_mla"):
        return []
    key = "sglang_mla" if subject.family == "sglang" and head.layout == "eagle3_mla" else subject.family
    findings = []
    for switch, since_by_engine in keys_table()["switches"].items():
        if not head.eagle_config.get(switch, head.config.get(switch)):
            continue
        since = since_by_engine[key]
        if since is not None and subject.version >= Version(since):
            continue
        known = f"implemented since {since}" if since else "not implemented in any version read"
        evidence = f"{switch} is set, {ENGINE[subject.family]} {subject.version} ignores it ({known})"
        consequence = "the drafter loads, computes another network than was trained, and accepts less"
        other = f"train the drafter without {switch}, or use the other engine"
        fix = f"use {ENGINE[subject.family]} {since} or newer" if since else other
        findings.append(Finding("DS331", "error", evidence, consequence, fix))
    return findings
