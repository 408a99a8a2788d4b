"""Taps: which boundaries a drafter config means for this engine, version and target class, against what it was trained on. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from draftsmith.check.head import Head, asked_method, head_of, speculative_config
from draftsmith.check.subject import Subject
from draftsmith.check.target import architecture_findings, taps_table
from draftsmith.findings import Finding
from draftsmith.models.taps import (
    KEY,
    SGLANG_ANY_NUMBER_SINCE,
    SGLANG_DEPTH_FROM_IDS_SINCE,
    SGLANG_READ,
    Reading,
    read_sglang,
    read_vllm,
    sglang_boundaries,
)
from draftsmith.models.text_config import text_part

RUNNER_2_DEFAULT = Version("0.30")  # vLLM: before, model runner 1 was the default


def tap_findings(subject: Subject) -> list[Finding]:
    """Whether the engine hands out taps on this target, which ones, and whether they are the ones the drafter was trained on."""
    head = head_of(subject)
    method = head.method if head is not None else asked_method(subject)  # a drafter that is not here is what the flags say
    if method not in ("eagle3", "dflash", "dspark"):
        return []
    target = text_part(subject.target)
    num_layers = target.get("num_hidden_layers")
    if not num_layers:
        return []
    findings = []
    if names := subject.target.get("architectures"):
        known = {**target, "architectures": names, "model_type": subject.target.get("model_type") or target.get("model_type")}
        findings += architecture_findings(known, subject.family, subject.version, method)
    if head is None or head.eagle_config.get("use_aux_hidden_state") is False:
        return findings
    reading = reading_of(subject, head, num_layers)
    shown = ", ".join(str(number) for number in reading.boundaries)
    evidence = f"taps boundaries {shown} of {num_layers} layers (from {reading.where})"
    findings.append(Finding("DS350", "info", evidence, "boundary j is the residual stream after j layers", "nothing"))
    findings += order_findings(reading, num_layers)
    findings += support_findings(subject, head, reading, num_layers)
    findings += width_findings(subject, head, reading)
    findings += trained_findings(subject, head, reading)
    return findings + spelling_findings(subject, head, reading, num_layers)


# --- reading ---------------------------------------------------------------------------------------------------------


def target_type(subject: Subject) -> str:
    """The model_type that names SGLang's target class: the wrapper's when it has a rule of its own, else the text part's."""
    outer = str(subject.target.get("model_type"))
    return outer if outer == "minimax_m3_vl" else str(text_part(subject.target).get("model_type") or outer)


def runner_of(subject: Subject) -> int:
    """vLLM's model runner, 1 or 2, as far as flags and environment tell."""
    if subject.cpu_build:
        return 1
    if (forced := subject.env.get("VLLM_USE_V2_MODEL_RUNNER")) is not None:
        return 2 if forced.strip() not in ("0", "", "false") else 1
    if speculative_config(subject).get("parallel_drafting"):
        return 1
    return 2 if subject.version >= RUNNER_2_DEFAULT else 1


def reading_of(subject: Subject, head: Head, num_layers: int) -> Reading:
    if subject.family == "sglang":
        return read_sglang(head.config, head.method, num_layers, target_type(subject), subject.version)
    return read_vllm(head.config, num_layers, subject.version, runner_of(subject))


def num_features(subject: Subject, head: Head) -> int:
    """How many tapped states the engine builds fc for. Not always as many as it taps."""
    config, nested = head.config, head.eagle_config.get(KEY)
    top = config.get(KEY)
    if head.method in ("dflash", "dspark"):
        ids = head.dflash_config.get("target_layer_ids") or config.get("target_layer_ids") or (top if subject.family == "vllm" else None)
        return len(ids) if ids else int(config.get("num_hidden_layers") or 3)
    if subject.family == "sglang" and head.layout == "eagle3_mla":
        return len(nested or top or (0, 0, 0))
    if subject.family == "sglang" and subject.version < SGLANG_ANY_NUMBER_SINCE:
        return 3
    explicit = config.get("num_aux_hidden_states")
    if "Qwen3ForCausalLM" in head.architecture:
        explicit, nested = config.get("num_aux_layers") or explicit, top or nested
    return int(explicit or len(nested or (0, 0, 0)))


def trained_boundaries(subject: Subject) -> tuple[tuple[int, ...], str] | None:
    """What the exporter wrote down that training used: Draftsmith's manifest.json, or its note in config.json."""
    if subject.drafter_folder is not None:
        path = subject.drafter_folder / "manifest.json"
        try:
            taps = json.loads(path.read_text())["summary"]["taps"]["boundaries"]
            return tuple(int(number) for number in taps), "manifest.json"
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no manifest, or one of another tool
    note = (subject.drafter or {}).get("draftsmith")
    if isinstance(note, dict) and note.get("tap_boundaries"):
        return tuple(note["tap_boundaries"]), "config.json's draftsmith.tap_boundaries"
    return None


# --- rules -----------------------------------------------------------------------------------------------------------


def order_findings(reading: Reading, num_layers: int) -> list[Finding]:
    boundaries, findings = reading.boundaries, []
    outside = [number for number in boundaries if not 0 <= number <= num_layers]
    if outside:
        evidence = f"{reading.where} means boundaries {listed(boundaries)}, the target has 0..{num_layers}"
        consequence = "the engine stops, or taps fewer states than the drafter needs"
        fix = "give ids of this target's layers; was the drafter made for a deeper target?"
        findings.append(Finding("DS352", "error", evidence, consequence, fix))
    if list(boundaries) != sorted(set(boundaries)):
        evidence = f"{reading.where} means boundaries {listed(boundaries)}, which do not increase strictly"
        consequence = "engines join the states in layer order, not in list order: fc gets them in other places than in training"
        fix = "write the ids in increasing order and permute fc's columns to match"
        findings.append(Finding("DS353", "error", evidence, consequence, fix))
    return findings


def support_findings(subject: Subject, head: Head, reading: Reading, num_layers: int) -> list[Finding]:
    """The two ends of the target: the embedding output and the output of the last layer."""
    if subject.family != "sglang" or head.method != "eagle3":
        return dflash_range_findings(subject, head, num_layers)
    kind, ends, findings = target_type(subject), taps_table()["sglang_ends"], []
    if 0 in reading.boundaries:
        since = ends["embedding"].get(kind)
        if since is None or subject.version < Version(since):
            evidence = f"{reading.where} taps boundary 0, the embedding output, on a {kind} target"
            known = f"works since {since}" if since else "was not found to work in any version read"
            consequence = f"SGLang {subject.version} adds a residual that is still None there and stops with a TypeError ({known})"
            fix = "train with boundaries from 2 on, or use a version whose target class hands the embedding out"
            findings.append(Finding("DS355", "error" if since or kind in ends["fails"] else "warning", evidence, consequence, fix))
    if num_layers in reading.boundaries:
        since = ends["last"].get(kind)
        if since is None or subject.version < Version(since):
            evidence = f"{reading.where} taps boundary {num_layers}, the output of the last layer, on a {kind} target"
            consequence = "SGLang captures before each layer: that state is never taken, and fc gets one feature too few"
            findings.append(Finding("DS355", "error", evidence, consequence, f"train with boundaries up to {num_layers - 1}"))
    return findings


def dflash_range_findings(subject: Subject, head: Head, num_layers: int) -> list[Finding]:
    """A drafter that says how deep its target was."""
    made_for = head.dflash_config.get("num_target_layers") or head.config.get("num_target_layers")
    if head.layout not in ("dflash", "dspark"):
        return []
    if not made_for:
        return depth_findings(subject, head)
    if not isinstance(made_for, int) or made_for == num_layers:
        return []
    evidence = f"the drafter's num_target_layers is {made_for}, this target has {num_layers}"
    consequence = "the engine only warns, or does not look: the taps are states of another model"
    return [Finding("DS358", "warning", evidence, consequence, "use the drafter with the target that it was trained for")]


def depth_findings(subject: Subject, head: Head) -> list[Finding]:
    """A drafter that does not say how deep its target is: SGLang once took the drafter's own depth for it."""
    ids = head.dflash_config.get("target_layer_ids") or head.config.get("target_layer_ids") or ()
    layers = int(head.config.get("num_hidden_layers") or 1)
    if subject.family != "sglang" or subject.version >= SGLANG_DEPTH_FROM_IDS_SINCE or not ids or max(ids) < layers:
        return []
    evidence = f"the drafter's config.json has no num_target_layers, its tap ids go up to {max(ids)}"
    consequence = f"SGLang {subject.version} takes the drafter's own {layers} layers for the target's, and stops at an id out of range"
    fix = f"write num_target_layers into the drafter's config.json, or use SGLang {SGLANG_DEPTH_FROM_IDS_SINCE} or newer"
    return [Finding("DS352", "error", evidence, consequence, fix)]


def width_findings(subject: Subject, head: Head, reading: Reading) -> list[Finding]:
    """As many states tapped as fc is built for, and fc built for the target's width."""
    findings = []
    built = num_features(subject, head)
    if built != len(reading.boundaries):
        evidence = f"{len(reading.boundaries)} states are tapped ({reading.where}), fc is built for {built}"
        fix = f"write num_aux_hidden_states: {len(reading.boundaries)} into the drafter's config.json"
        if subject.family == "sglang" and subject.version < SGLANG_ANY_NUMBER_SINCE:
            fix = "use 3 taps, or SGLang 0.5.12 or newer"
        findings.append(Finding("DS356", "error", evidence, "the first forward pass stops with a shape error, or loading fc does", fix))
    width, said = text_part(subject.target).get("hidden_size"), head.config.get("target_hidden_size") or head.config.get("hidden_size")
    if width and said and width != said:
        evidence = f"the drafter takes states of width {said}, the target's are {width} wide"
        fix = "set target_hidden_size, or use the drafter with its own target"
        findings.append(Finding("DS356", "error", evidence, "fc does not fit the tapped states", fix))
    if subject.family == "sglang" and head.method == "eagle3" and built == 1 and width == head.config.get("hidden_size"):
        evidence = "one tap whose width is the drafter's own"
        consequence = "SGLang applies fc only when the widths differ: it is skipped without a word"
        findings.append(Finding("DS359", "error", evidence, consequence, "use at least two taps"))
    return findings


def trained_findings(subject: Subject, head: Head, reading: Reading) -> list[Finding]:
    trained = trained_boundaries(subject)
    if trained is None or trained[0] == reading.boundaries:
        return []
    evidence = f"trained on boundaries {listed(trained[0])} ({trained[1]}), served with {listed(reading.boundaries)} ({reading.where})"
    if subject.family == "vllm":
        fix = f"write {KEY}: {list(trained[0])} at the top level of config.json"
    else:
        fix = f"write eagle_config.{KEY} so that SGLang {subject.version} reads {list(trained[0])}: {[n - 1 for n in trained[0]]} adds 1"
    consequence = "the drafter loads, sees other hidden states than in training, and accepts far less"
    return [Finding("DS354", "error", evidence, consequence, fix)]


def spelling_findings(subject: Subject, head: Head, reading: Reading, num_layers: int) -> list[Finding]:
    """The nested key (layer outputs, SGLang's meaning) against the top-level key (boundaries, vLLM's meaning)."""
    nested, top = head.eagle_config.get(KEY), head.config.get(KEY)
    if not nested or head.method != "eagle3":
        return []
    meant = sglang_boundaries(nested, num_layers, target_type(subject), max(subject.version, SGLANG_READ[1]))
    if top:
        if tuple(top) == meant:
            return []
        evidence = f"the top-level ids mean boundaries {listed(top)}, the nested ones {listed(meant)} in SGLang"
        consequence = f"SGLang and vLLM tap different states; this engine takes {listed(reading.boundaries)}"
        fix = "write both keys for the boundaries that training used, or neither for the default"
        return [Finding("DS351", "warning", evidence, consequence, fix)]
    if subject.family == "sglang" or meant == reading.boundaries:
        return []
    trusted = trained_boundaries(subject) is not None
    how = "takes them as boundaries" if reading.given else "does not read them and takes its default"
    evidence = f"the only ids are nested (SGLang's numbering, boundaries {listed(meant)}); vLLM {how}: {listed(reading.boundaries)}"
    consequence = "the drafter sees other hidden states than its author meant, and accepts less"
    severity = "info" if trusted else "warning"  # DS354 has said it with certainty
    return [Finding("DS357", severity, evidence, consequence, f"add {KEY}: {list(meant)} at the top level of config.json")]


def listed(numbers: Sequence[Any]) -> str:
    return ", ".join(str(number) for number in numbers)
