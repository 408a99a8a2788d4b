"""Atomic writes, JSONL that survives kills, keys and identities."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftsmith.errors import EnvironmentFailed
from draftsmith.manifest import (
    Manifest,
    append_jsonl,
    atomic_folder,
    atomic_write_json,
    atomic_write_text,
    canonical_hash,
    hash_outputs,
    read_jsonl,
    sha256_file,
    stage_key,
)


def test_atomic_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    atomic_write_text(path, "first, and longer")
    atomic_write_text(path, "second")
    assert path.read_text() == "second"
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]


def test_atomic_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    atomic_write_text(path, "old")
    (tmp_path / f".file.txt.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(EnvironmentFailed, match="No space left"):
        atomic_write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_a_killed_writer_leaves_either_the_old_or_the_new_file(tmp_path: Path, child_env: dict[str, str]) -> None:
    path = tmp_path / "file.json"
    script = (
        "import sys\nfrom pathlib import Path\nfrom draftsmith.manifest import atomic_write_json\n"
        f"print('up', flush=True)\nn = 0\nwhile True:\n    n += 1\n    atomic_write_json(Path({str(path)!r}), {{'n': [n] * 20000}})\n"
    )
    for wait_s in (0.01, 0.05, 0.1):
        child = subprocess.Popen([sys.executable, "-c", script], env=child_env, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        while not path.exists():
            time.sleep(0.001)
        time.sleep(wait_s)
        child.send_signal(signal.SIGKILL)
        child.wait()
        values = json.loads(path.read_text())["n"]
        assert len(values) == 20000 and len(set(values)) == 1


def test_atomic_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with atomic_folder(folder) as new:
        (new / "a").write_text("1")
    with pytest.raises(ZeroDivisionError), atomic_folder(folder) as new:
        (new / "a").write_text("2")
        raise ZeroDivisionError
    assert (folder / "a").read_text() == "1"
    assert [place.name for place in tmp_path.iterdir()] == ["out"]


def test_a_line_cut_short_is_dropped_on_reading_and_on_appending(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, {"n": 1})
    append_jsonl(path, {"n": 2})
    whole = path.read_bytes()
    for cut in range(1, len(b'{"n": 2}\n')):
        path.write_bytes(whole[:-cut])
        kept = [{"n": 1}, {"n": 2}] if cut == 1 else [{"n": 1}]
        assert read_jsonl(path) == kept
        append_jsonl(path, {"n": 3})
        assert read_jsonl(path) == [{"n": 1}, {"n": 3}]
    path.write_bytes(b'{"n": ')
    append_jsonl(path, {"n": 4})
    assert read_jsonl(path) == [{"n": 4}]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\nrubbish\n{"n": 2}\n')
    with pytest.raises(EnvironmentFailed, match="line 2"):
        read_jsonl(path)
    assert read_jsonl(tmp_path / "absent.jsonl") == []


def test_key_depends_on_stage_config_and_inputs_and_on_nothing_else() -> None:
    key = stage_key("data", {"a": 1, "b": {"c": 2, "d": 3}}, {"check": "x"})
    assert key == stage_key("data", {"b": {"d": 3, "c": 2}, "a": 1}, {"check": "x"})
    others = [
        stage_key("train", {"a": 1, "b": {"c": 2, "d": 3}}, {"check": "x"}),
        stage_key("data", {"a": 1, "b": {"c": 2, "d": 4}}, {"check": "x"}),
        stage_key("data", {"a": 1, "b": {"c": 2, "d": 3}}, {"check": "y"}),
        stage_key("data", {"a": 1, "b": {"c": 2, "d": 3}}, {}),
    ]
    assert len({key, *others}) == 5
    assert canonical_hash({"x": (1, 2)}) == canonical_hash({"x": [1, 2]}), "a tuple read back from JSON is a list"


def test_manifest_round_trip_and_identity(tmp_path: Path) -> None:
    (tmp_path / "out.bin").write_bytes(b"content")
    (tmp_path / "stage.log").write_text("not an output")
    (tmp_path / ".key").write_text("not an output")
    written = Manifest("data", {"seed": 1}, {"check": "x"}, hash_outputs(tmp_path), {"rows": 3}, started=1.0, active_s=2.5)
    assert Manifest.read(tmp_path) is None
    written.write(tmp_path)
    read = Manifest.read(tmp_path)
    assert read is not None and read == written and read.outputs == {"out.bin": sha256_file(tmp_path / "out.bin")}
    assert read.provenance["tools"]["draftsmith"] and read.provenance["hardware"]["cores"] >= 1
    assert hash_outputs(tmp_path) == written.outputs, "the manifest does not hash itself"

    later = Manifest("data", {"seed": 1}, {"check": "x"}, written.outputs, {"rows": 4}, started=9.0, active_s=9.0)
    assert later.identity == written.identity, "times and summary are not the result"
    changed = Manifest("data", {"seed": 1}, {"check": "x"}, {"out.bin": "other"})
    assert changed.key == written.key and changed.identity != written.identity


def test_damage_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    manifest = Manifest("data", {}, {}, hash_outputs(tmp_path))
    assert manifest.damaged(tmp_path) == []
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").unlink()
    assert manifest.damaged(tmp_path) == ["a", "b"]


def test_a_manifest_of_another_schema_is_refused(tmp_path: Path) -> None:
    atomic_write_json(tmp_path / "manifest.json", {"schema": 99})
    with pytest.raises(EnvironmentFailed, match="schema 99"):
        Manifest.read(tmp_path)
