"""Flag names by version: one name per flag, and what is wrong with names and values that the parser would refuse. Data: flag_tables/*.json.

Both engines' parsers take an unambiguous beginning of a flag for the flag (argparse); vLLM's also takes underscores for hyphens.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from draftsmith.check.args import whole
from draftsmith.check.raises import raised
from draftsmith.check.shell import unexpanded
from draftsmith.check.since import table
from draftsmith.check.subject import Family, Subject
from draftsmith.findings import Finding
from draftsmith.settings import FlagValue

FOLDER = Path(__file__).with_name("flag_tables")
ALWAYS = ("help", "config", "version")  # of every parser
BY_HAND = {"vllm": ("model", "api-server-count", "headless", "grpc", "uds"), "sglang": ()}  # added outside the source that the table reads
OTHER = {"vllm": "SGLang", "sglang": "vLLM"}
TAKES_VALUE = re.compile(r"^(max|num)-|-(size|config)$")  # vLLM's table does not tell its optional switches from flags with a value
NO_NUMBER = ("auto", "none", "")
UNPLACED = raised("both", None, "unrecognized", words="{words}")


@cache
def content(family: Family) -> dict[str, Any]:
    """The table's file."""
    return json.loads((FOLDER / f"{family}.json").read_text())


@cache
def options_of(family: Family, version: Version) -> dict[str, dict[str, Any]]:
    """Every option string of a release, or of the nearest older one that was read -> its span. As written, dashes and all."""
    read = content(family)["versions"]
    near = max((number for number, name in enumerate(read) if Version(name) <= version), default=0)
    return {
        name: span
        for name, spans in content(family)["options"].items()
        for span in spans
        if read.index(span["since"]) <= near <= read.index(span["until"])
    }


@cache
def flags_of(family: Family, version: Version) -> dict[str, dict[str, Any]]:
    """Those with two dashes, without them."""
    there = {name[2:]: span for name, span in options_of(family, version).items() if name.startswith("--")}
    return {**{name: {} for name in (*ALWAYS, *BY_HAND[family])}, **there}


def main_name(family: Family, version: Version, option: str) -> str:
    """The flag that an option string belongs to."""
    return str(flags_of(family, version)[option].get("of", option)).lstrip("-")


def canonical(subject: Subject) -> tuple[Subject, list[Finding]]:
    """The subject with one name per flag (that of this version, then of table `aliases`), and findings about names and values.

    Flags that the version does not have are left out, or read as the one that is meant: the rest of the launch is judged all the same.
    """
    names = table(subject.family)["aliases"]
    flags: dict[str, FlagValue] = {}
    findings: list[Finding] = []
    unplaced: list[str] = []  # words that the parser cannot place: it names them all in one error
    for written, value in subject.flags.items():
        name, said = one_name(subject.family, subject.version, written)
        findings += said
        if UNPLACED in [finding.raises for finding in said]:
            unplaced += [f"--{written}", *([] if value is True or value is None else [str(value)])]
        if name is None:
            continue
        negated = name.startswith("no-") and name[3:] in flags_of(subject.family, subject.version)
        name, value = (name[3:], False) if negated else (name, value)
        findings += value_findings(subject, name, value)
        name = names.get(name, name)
        if name in flags and flags[name] != value:
            twice = f"--{name} is given under two names, with different values"
            findings.append(Finding("DS434", "warning", twice, "the last one wins", "keep one"))
        flags[name] = value
    all_of_them = UNPLACED.format(words=" ".join(unplaced))
    findings = [dataclasses.replace(finding, raises=all_of_them) if finding.raises == UNPLACED else finding for finding in findings]
    return dataclasses.replace(subject, flags=flags), findings


# --- names -----------------------------------------------------------------------------------------------------------


def one_name(family: Family, version: Version, written: str) -> tuple[str | None, list[Finding]]:
    """(the flag's name in this version, findings); None when the parser would not know it."""
    known = flags_of(family, version)
    word = written.replace("_", "-") if family == "vllm" else written
    if word in known:
        name = main_name(family, version, word)
        return (f"no-{name}" if word == f"no-{name}" else name), deprecated(family, version, word)
    if family == "vllm" and word.startswith("no-") and word[3:] in known:
        return f"no-{main_name(family, version, word[3:])}", []
    gone = table(family)["renamed"].get(word.replace("_", "-"))
    if gone and version < Version(gone[0]) and f"--{word}" not in content(family)["options"]:
        return word.replace("_", "-"), []  # of a release before those that were read
    begun = {main_name(family, version, option): option for option in known if option.startswith(word)} if len(word) > 1 else {}
    if len(begun) == 1:
        full, option = next(iter(begun.items()))
        return full, abbreviated(family, version, word, option)
    if len(begun) > 1:
        return None, [ambiguous(family, version, written, begun)]
    word = written.replace("_", "-")
    close = word if word in known else next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.75)), None)
    elsewhere = word in table(family)["elsewhere"] or f"--{word}" in content(family)["options"]
    return None if elsewhere and word not in known else close, [unknown(family, version, written, close)]


def abbreviated(family: Family, version: Version, word: str, option: str) -> list[Finding]:
    """An abbreviation that this version takes and a later one does not."""
    for later in (Version(name) for name in content(family)["versions"] if Version(name) > version):
        begun = {main_name(family, later, name) for name in flags_of(family, later) if name.startswith(word)}
        if len(begun) != 1 and word not in flags_of(family, later):
            why = f"it works here; {family} {later} stops on it"
            return [Finding("DS436", "info", f"--{word} is a beginning of --{option}", why, f"write --{option}")]
    return []


def ambiguous(family: Family, version: Version, written: str, begun: dict[str, str]) -> Finding:
    """An abbreviation of several flags. begun: flag -> the option string that begins so."""
    shown = [f"--{option}" for option in sorted(begun.values())]
    listed = ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    renamed = table(family)["renamed"].get(written, ("", ""))[1]
    meant = next((name for name in (renamed, "speculative-draft-model-path") if name in begun), min(begun, key=len))
    raises = raised("both", None, "ambiguous", name=written)
    return Finding("DS432", "error", f"--{written} could be {listed}", f"{family} {version} stops", f"write --{meant}", raises)


def deprecated(family: Family, version: Version, word: str) -> list[Finding]:
    """A flag that still works and will go."""
    if not flags_of(family, version)[word].get("deprecated"):
        return []
    instead = table(family)["renamed"].get(word, ("", ""))[1]
    fix = f"write --{instead}" if instead and not instead.startswith("nothing") else "nothing"
    return [Finding("DS431", "info", f"--{word} is deprecated in {family} {version}", "it works, with a warning in the log", fix)]


def unknown(family: Family, version: Version, written: str, close: str | None) -> Finding:
    """A flag that this version does not have: renamed or removed, too new, of the other engine, misspelt (`close` is meant)."""
    rules, word = table(family), written.replace("_", "-")
    spans = content(family)["options"].get(f"--{word}", [])
    stops = f"{family} {version} stops while it parses its arguments"
    if "_" in written and word == close:
        return Finding("DS430", "error", f"--{written} has underscores", stops, f"write --{word}", UNPLACED)
    if word in rules["renamed"] and version >= Version(rules["renamed"][word][0]):
        gone, instead = rules["renamed"][word]
        fix = "remove it" + instead.removeprefix("nothing") if instead.startswith("nothing") else f"write --{instead}"
        return Finding("DS431", "error", f"--{written} is gone since {family} {gone}", stops, fix, UNPLACED)
    if word in rules["elsewhere"]:
        instead = rules["elsewhere"][word]
        fix = "remove it: " + instead.removeprefix("nothing: ") if instead.startswith("nothing") else f"write --{instead}"
        return Finding("DS430", "error", f"--{written} is a flag of {OTHER[family]}, not of {family}", stops, fix, UNPLACED)
    if spans and version < Version(spans[0]["since"]):
        first = spans[0]["since"]
        fix = f"{family} {first} or newer, or remove it"
        return Finding("DS430", "error", f"--{written} came with {family} {first}", stops, fix, UNPLACED)
    if spans:
        evidence = f"--{written} is gone: {family} {spans[-1]['until']} was the last release read that has it"
        return Finding("DS431", "error", evidence, stops, "remove it", UNPLACED)
    return Finding("DS430", "error", f"unknown flag --{written}", stops, f"did you mean --{close}?" if close else "remove it", UNPLACED)


# --- values ----------------------------------------------------------------------------------------------------------


def value_findings(subject: Subject, name: str, value: FlagValue) -> list[Finding]:
    """A value of the wrong kind, where the table says the kind. vLLM's says little, and its numbers may be words (auto)."""
    row = flags_of(subject.family, subject.version).get(name, {})
    if unexpanded(value) or not row:
        return []
    said = wrong_value(name, value, row) if subject.family == "sglang" else no_number(name, value, row)
    if value is True and "value" not in row and (subject.family == "sglang" or TAKES_VALUE.search(name)):
        said = "it takes a value", f"--{name} VALUE", "no_value"
    if said is None:
        return []
    evidence, fix, why = said
    raises = raised(subject.family, None, why, names=spellings(subject.family, subject.version, name), value=value)
    stops = f"{subject.family} {subject.version} stops while it parses its arguments"
    return [Finding("DS435", "error", f"--{name}{'' if value is True else f' {value}'}: {evidence}", stops, fix, raises)]


def wrong_value(name: str, value: FlagValue, row: dict[str, Any]) -> tuple[str, str, str] | None:
    """(what is wrong, what to write, the parser's error) of a value that the row does not take."""
    if row.get("value") is False:
        return ("it is a switch and takes no value", f"write --{name} alone, or leave it out", "switch") if isinstance(value, str) else None
    if row.get("type") == "int" and "value" not in row and value is not None and not re.fullmatch(r"\s*[+-]?\d+\s*", str(value)):
        return "a whole number is wanted", f"--{name} N", "not_int"
    choices = [] if "value" in row or name == "speculative-algorithm" else [str(choice) for choice in row.get("choices") or ()]
    if choices and isinstance(value, str) and value not in choices:
        close = difflib.get_close_matches(value, choices, n=1)
        return "not among its choices", f"did you mean {close[0]}?" if close else f"one of {', '.join(choices)}", "no_choice"
    return None


def no_number(name: str, value: FlagValue, row: dict[str, Any]) -> tuple[str, str, str] | None:
    """vLLM: a word where a whole number is wanted."""
    word = isinstance(value, str) and (whole(value) is None or re.fullmatch(r"[\d.]*\.\d*", value)) and value.lower() not in NO_NUMBER
    return ("a whole number is wanted", f"--{name} N", "not_int") if word and row.get("type") == "int" else None


def spellings(family: Family, version: Version, name: str) -> str:
    """A flag as the parser names it, with all its names."""
    others = [option for option, row in options_of(family, version).items() if row.get("of", "").lstrip("-") == name]
    return "/".join((f"--{name}", *others))
