"""Flag names by version: one name per flag, and what is wrong with names and values that the parser would refuse. Data: flag_tables/*.json.

Both engines' parsers take an unambiguous beginning of a flag for the flag (argparse); vLLM's also takes underscores for hyphens.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from draftsmith.check.args import whole
from draftsmith.check.command_line import unexpanded
from draftsmith.check.since import nearest, table
from draftsmith.check.subject import Family, Subject
from draftsmith.findings import Finding
from draftsmith.settings import FlagValue

FOLDER = Path(__file__).with_name("flag_tables")
ALWAYS = {"help", "config", "version"}  # of every parser
BY_HAND = {
    "vllm": {"model": {}, "api-server-count": {}, "headless": {"kind": "switch"}, "grpc": {"kind": "switch"}, "uds": {}},
    "sglang": {},
}


@cache
def flags_of(family: Family, version: Version) -> dict[str, dict[str, Any]]:
    """Flag -> {aliases, kind, choices, several} of a release, or of the nearest one that was read."""
    near = nearest(family, version)
    rows = json.loads((FOLDER / f"{family}.json").read_text())["flags"]
    there = {
        name: row
        for name, history in rows.items()
        for row in history
        if Version(row["since"]) <= near and ("until" not in row or near < Version(row["until"]))
    }
    return {**BY_HAND[family], **there}


@cache
def spellings(family: Family, version: Version) -> dict[str, str]:
    """Every option string of a release -> the flag it belongs to."""
    found = dict.fromkeys(ALWAYS, "help")
    for name, row in flags_of(family, version).items():
        found |= dict.fromkeys([name, *row.get("aliases", ())], name)
    return found


@cache
def history(family: Family) -> dict[str, tuple[str, str | None]]:
    """Flag or alias -> (first, first version without it) over all releases that were read."""
    rows = json.loads((FOLDER / f"{family}.json").read_text())["flags"]
    return {word: (row[0]["since"], row[-1].get("until")) for name, row in rows.items() for word in [name, *row[-1].get("aliases", ())]}


def canonical(subject: Subject) -> tuple[Subject, list[Finding]]:
    """The subject with one name per flag (that of this version, then of table `aliases`), and findings about names and values.

    Flags that the version does not have are left out: they have no effect but the error.
    """
    names = table(subject.family)["aliases"]
    flags: dict[str, FlagValue] = {}
    findings: list[Finding] = []
    for written, value in subject.flags.items():
        name, said = one_name(subject.family, subject.version, written)
        findings += said
        if name is None:
            continue
        negated = name.startswith("no-") and name not in flags_of(subject.family, subject.version)
        name, value = (name[3:], False) if negated else (name, value)
        findings += value_findings(subject, name, value)
        flags[names.get(name, name)] = value
    return dataclasses.replace(subject, flags=flags), findings


def one_name(family: Family, version: Version, written: str) -> tuple[str | None, list[Finding]]:
    """(the flag's name in this version, findings); None when the parser would not know it."""
    known = spellings(family, version)
    word = written.replace("_", "-") if family == "vllm" else written
    if word in known:
        return known[word], []
    if family == "vllm" and word.startswith("no-") and word[3:] in known:
        return f"no-{known[word[3:]]}", []
    begun = {known[option]: option for option in known if option.startswith(word)} if len(word) > 1 else {}
    if len(begun) == 1:
        full = next(iter(begun))
        evidence = f"--{written} is a beginning of --{full}"
        why = f"it works in {family} {version}, until another flag begins the same way"
        return full, [Finding("DS436", "info", evidence, why, f"write --{full}")]
    if len(begun) > 1:
        options = ", ".join(f"--{option}" for option in sorted(begun.values()))
        evidence = f"--{written} could be {options if len(options) < 200 else options[:200] + '...'}"
        fix = f"write --{likeliest(family, written, sorted(begun))}"
        return None, [Finding("DS432", "error", evidence, f"{family} {version} stops: ambiguous option", fix)]
    return None, [unknown(family, version, written, sorted(known))]


def likeliest(family: Family, written: str, names: list[str]) -> str:
    """Which of several flags is meant: the renamed one's successor, a name of old, else the shortest."""
    renamed = table(family)["renamed"].get(written)
    old = {"speculative-draft": "speculative-draft-model-path"}.get(written)
    return renamed[1] if renamed and renamed[1] in names else old if old in names else min(names, key=len)


def unknown(family: Family, version: Version, written: str, known: list[str]) -> Finding:
    """A flag that this version does not have: renamed or removed, too new, of the other engine, misspelt."""
    rules, word = table(family), written.replace("_", "-")
    stops = f"{family} {version} stops: unrecognized arguments"
    first, last = history(family).get(word, (None, None))
    if word in rules["renamed"] and version >= Version(rules["renamed"][word][0]):
        gone, instead = rules["renamed"][word]
        fix = (
            f"remove it ({instead})"
            if instead.startswith("nothing") and instead != "nothing"
            else "remove it"
            if instead == "nothing"
            else f"write --{instead}"
        )
        return Finding("DS431", "error", f"--{written} is gone since {family} {gone}", stops, fix)
    if word in rules["elsewhere"]:
        other = "vLLM" if family == "sglang" else "SGLang"
        instead = rules["elsewhere"][word]
        fix = instead.removeprefix("nothing: ") if instead.startswith("nothing") else f"--{instead}"
        return Finding("DS430", "error", f"--{written} is a flag of {other}, not of {family}", stops, fix)
    if first is not None and version < Version(first):
        return Finding("DS430", "error", f"--{written} came with {family} {first}", stops, f"{family} {first} or newer, or remove it")
    if last is not None and version >= Version(last):
        return Finding("DS431", "error", f"--{written} is gone since {family} {last}", stops, "remove it")
    if "_" in written and word in known:
        return Finding("DS430", "error", f"--{written} has underscores", stops, f"write --{word}")
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
    return Finding("DS430", "error", f"unknown flag --{written}", stops, f"did you mean --{close[0]}?" if close else "remove it")


def value_findings(subject: Subject, name: str, value: FlagValue) -> list[Finding]:
    """A value of the wrong kind, where the table says the kind. Only SGLang's table does."""
    row: Mapping[str, Any] = flags_of(subject.family, subject.version).get(name, {})
    if unexpanded(value) or not row or subject.family == "vllm":
        return []
    stops = f"{subject.family} {subject.version} stops while it parses its arguments"
    kind = row.get("kind")
    if kind == "switch" and isinstance(value, str):
        return [
            Finding(
                "DS435", "error", f"--{name} {value}: it is a switch and takes no value", stops, f"write --{name} alone, or leave it out"
            )
        ]
    if kind == "int" and value is not None and (isinstance(value, bool) or whole(value) is None):
        return [
            Finding(
                "DS435", "error", f"--{name} {'' if value is True else value}".strip() + ": a whole number is wanted", stops, f"--{name} N"
            )
        ]
    choices = row.get("choices")
    if (
        choices
        and isinstance(value, str)
        and not row.get("several")
        and value not in [str(choice) for choice in choices]
        and name != "speculative-algorithm"
    ):
        close = difflib.get_close_matches(value, [str(choice) for choice in choices], n=1)
        fix = f"did you mean {close[0]}?" if close else f"one of {', '.join(map(str, choices))}"
        return [Finding("DS435", "error", f"--{name} {value} is not among its choices", stops, fix)]
    return []
