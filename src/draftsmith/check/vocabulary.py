"""The drafter's vocabulary map, its embedding against the target's, and its floating type. Reads only small integer tables and samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.check.drafter_files import Tensors
from draftsmith.check.head import Head
from draftsmith.check.subject import Subject
from draftsmith.check.weights import BadHeader, read_bytes, read_header, read_index
from draftsmith.findings import Finding
from draftsmith.models.text_config import text_part

MAX_TABLE_BYTES = 8_000_000
SAMPLES, SAMPLE_BYTES = 16, 4096  # of an embedding: 16 pieces spread over the table tell two tables apart
NUMPY = {"I64": "<i8", "I32": "<i4", "BOOL": "?", "U8": "u1"}
TARGET_EMBEDDINGS = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
COMPUTE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
DRAFTER_FIX = "write d2t as target id minus draft id, increasing in target id, and t2d as the mask of those ids"


def read_table(folder: Path, entry: Mapping[str, Any]) -> np.ndarray | None:
    """A small integer tensor; None when it is large or not of integers."""
    begin, end = entry["data_offsets"]
    if entry["dtype"] not in NUMPY or end - begin > MAX_TABLE_BYTES:
        return None
    return np.frombuffer(read_bytes(folder / entry["file"], dict(entry)), dtype=NUMPY[entry["dtype"]])


def vocabulary_findings(subject: Subject, head: Head, tensors: Tensors) -> list[Finding]:
    """d2t holds offsets: d2t + arange are the target ids, strictly increasing and inside the vocabulary; t2d marks the same ids."""
    folder = subject.drafter_folder
    vocabulary = text_part(subject.target).get("vocab_size") or head.config.get("vocab_size")
    d2t = read_table(folder, tensors["d2t"]) if folder is not None and "d2t" in tensors else None
    if d2t is None or folder is None or not vocabulary or not d2t.size:
        return []
    ids = d2t + np.arange(d2t.size)
    t2d = read_table(folder, tensors["t2d"]) if "t2d" in tensors else None
    findings = range_findings(d2t, ids, vocabulary)
    if not findings and not (np.diff(ids) > 0).all():
        twice = ids.size - np.unique(ids).size
        if twice:
            evidence = f"d2t + arange names {twice} target ids more than once"
            findings.append(Finding("DS327", "error", evidence, "some draft tokens overwrite others", DRAFTER_FIX))
        else:
            evidence = "d2t + arange does not increase, as every exporter writes it"
            consequence = "the rows of the head may be in another order than the table"
            findings.append(Finding("DS327", "warning", evidence, consequence, DRAFTER_FIX))
    if t2d is None or findings:
        return findings
    marked = np.flatnonzero(t2d)
    if marked.size != ids.size or not np.array_equal(marked, np.sort(ids)):
        evidence = f"t2d marks {marked.size} target ids, d2t names {ids.size}"
        evidence += "" if marked.size != ids.size else f", and {np.setdiff1d(ids, marked).size} of them differ"
        consequence = "engines read d2t alone; the two tables come from different runs, and the head belongs to one of them"
        findings.append(Finding("DS328", "warning", evidence, consequence, DRAFTER_FIX))
    return findings


def range_findings(d2t: np.ndarray, ids: np.ndarray, vocabulary: int) -> list[Finding]:
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and high < vocabulary and not looks_absolute(d2t, vocabulary):
        return []
    evidence = f"d2t + arange gives target ids {low}..{high}, the vocabulary is 0..{vocabulary - 1}"
    if looks_absolute(d2t, vocabulary):
        evidence += "; d2t itself increases inside the vocabulary, as absolute ids would"
    consequence = "every draft becomes another token, or the engine reads outside the vocabulary"
    return [Finding("DS327", "error", evidence, consequence, DRAFTER_FIX)]


def looks_absolute(d2t: np.ndarray, vocabulary: int) -> bool:
    """Strictly increasing values inside the vocabulary are ids, not offsets: offsets of a reduced vocabulary repeat."""
    inside = d2t.size > 2 and d2t[0] >= 0 and int(d2t[-1]) < vocabulary
    return bool(inside and (np.diff(d2t) > 0).all() and int(d2t[-1]) + d2t.size - 1 >= vocabulary)


# --- embedding and type ----------------------------------------------------------------------------------------------


def embedding_findings(subject: Subject, head: Head, tensors: Tensors) -> list[Finding]:
    """SGLang puts the target's embedding in the place of the drafter's own; vLLM keeps one that differs."""
    entry = tensors.get("embed_tokens.weight") or tensors.get("model.embed_tokens.weight")
    if entry is None or head.layout not in ("eagle3", "eagle3_mla", "eagle"):
        return []
    replaced = subject.family == "sglang" and head.config.get("target_hidden_size") in (None, head.config.get("hidden_size"))
    same = same_embedding(subject, entry)
    if same or not replaced:
        return []
    fix = "remove embed_tokens.weight from the folder, or serve the drafter with vLLM, which keeps it"
    if same is None:
        evidence = f"the folder has an embedding of its own, {entry['shape']} {entry['dtype']}; it was not compared with the target's"
        consequence = "SGLang uses the target's instead: no harm when training froze it"
        return [Finding("DS335", "info", evidence, consequence, fix)]
    evidence = f"the drafter's embedding, {entry['shape']} {entry['dtype']}, differs from the target's"
    return [Finding("DS335", "error", evidence, "SGLang uses the target's instead, which the drafter was not trained on", fix)]


def same_embedding(subject: Subject, entry: Mapping[str, Any]) -> bool | None:
    """Whether samples of both tables agree; None when they cannot be compared (no target folder, other type)."""
    folder = subject.target_folder
    if folder is None or subject.drafter_folder is None:
        return None
    try:
        found = find_tensor(folder, TARGET_EMBEDDINGS)
    except (BadHeader, OSError):
        return None
    if found is None:
        return None
    path, other = found
    if other["dtype"] != entry["dtype"]:
        return None
    if other["shape"] != entry["shape"]:
        return False
    size = entry["data_offsets"][1] - entry["data_offsets"][0]
    for k in range(SAMPLES):
        start = k * max(0, size - SAMPLE_BYTES) // max(1, SAMPLES - 1)
        mine = read_bytes(subject.drafter_folder / entry["file"], dict(entry), start, SAMPLE_BYTES)
        if mine != read_bytes(path, other, start, SAMPLE_BYTES):
            return False
    return True


def find_tensor(folder: Path, names: tuple[str, ...]) -> tuple[Path, dict[str, Any]] | None:
    """The file and header entry of the first of these tensors that a folder has. Opens one shard when there is an index."""
    index = read_index(folder)
    all_files = sorted(path.name for path in folder.glob("*.safetensors"))
    files = sorted({index[name] for name in names if name in index}) if index else all_files
    for file in files[:4]:
        if (folder / file).is_file():
            header = read_header(folder / file)
            for name in names:
                if name in header:
                    return folder / file, header[name]
    return None


def head_type_findings(subject: Subject, tensors: Tensors) -> list[Finding]:
    """A drafter in another 16-bit type than the target computes in."""
    target = text_part(subject.target)
    asked = subject.flags.get("dtype")
    wanted = COMPUTE.get(str(asked if asked not in (None, "auto", "half") else target.get("dtype") or target.get("torch_dtype")))
    counts = Counter(entry["dtype"] for entry in tensors.values() if entry["dtype"] in ("F16", "BF16"))
    if wanted not in ("F16", "BF16") or not counts:
        return []
    main = counts.most_common(1)[0][0]
    if main == wanted:
        return []
    evidence = f"the drafter's weights are {main}, the target computes in {wanted}"
    consequence = "the engine casts them: a float16 head under a bfloat16 or fp8 target has been seen to accept nothing"
    return [Finding("DS336", "warning", evidence, consequence, f"write the drafter in {wanted}")]
