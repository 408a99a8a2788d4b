"""Text as people copy it -> words, as a shell splits them. Nothing is executed; variables that the text itself sets are put in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from draftsmith.errors import UsageError

END = re.compile(r"[;&|()\n]+")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*\+?=")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
ARRAY = re.compile(r"^\$\{(\w+)\[[@*]\]\}$")
LEFT_OVER = re.compile(r"\$[\w{(]|`")
FENCE = re.compile(r"(?m)^[ \t]*(?:```\w*|%%\w+)[ \t]*$")  # of Markdown, of a notebook
JOINED = re.compile(r"[\\^`][ \t]*\n")  # how a line goes on in a shell, in cmd, in PowerShell


def tokens(text: str) -> list[str]:
    """Words, with operators and line ends as words of their own. Raises UsageError for an open quote."""
    text = FENCE.sub("", text.replace("\r\n", "\n").replace("\u00a0", " ")).strip()
    if len(text) > 1 and text[0] == text[-1] == "`":
        text = text[1:-1]
    if text.startswith("# ") and "\n" not in text:  # the prompt of root
        text = text[2:]
    text = JOINED.sub(" ", uncommented(text))
    text = re.sub(r"(?<=\s)\d(?=[<>])", "", text)  # the 2 of 2>&1
    text = re.sub(r"\n[ \t]*(?=--?[A-Za-z])", " ", text)  # a copied page often loses the backslashes
    lexer = shlex.shlex(text.strip(), posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError(f"the pasted command cannot be split: {error}", hint="a quote is open; check the JSON in the command") from None


def uncommented(text: str) -> str:
    """Without comments: a # that begins a word outside quotes, to the end of its line; the line too when nothing else is on it."""
    kept: list[str] = []
    quote, position = "", 0
    while position < len(text):
        character = text[position]
        if character == "\\" and quote != "'":
            kept.append(text[position : position + 2])
            position += 2
            continue
        if character == "#" and not quote and (position == 0 or text[position - 1] in " \t\n;|&("):
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            alone = not "".join(kept).rpartition("\n")[2].strip()
            position = end + 1 if alone else end
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        kept.append(character)
        position += 1
    return "".join(kept)


def end_of(words: Sequence[str]) -> int:
    """How many of the words belong to the first command: up to `&`, `;`, `|`, a bracket or a new line."""
    return next((index for index, word in enumerate(words) if END.fullmatch(word)), len(words))


def without_redirections(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if not re.fullmatch(r"\d?[<>&]*[<>][<>&]*\S*", word):
            kept.append(word)
        elif not re.search(r"[<>&]\S*[^<>&]$", word):
            next(rest, None)  # where it goes to
    return kept


# --- variables -------------------------------------------------------------------------------------------------------


def assignments(words: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words, also behind --env= and -e; later ones may use earlier ones."""
    found: dict[str, str] = {}
    for word in words:
        word = re.sub(r"^(?:--env=|-e(?=\w+=)|Environment=)", "", word)
        if ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            before = found.get(name.removesuffix("+"), "") if name.endswith("+") else ""
            found[name.removesuffix("+")] = before + expand(value, found)
    return found


def arrays(words: Sequence[str]) -> dict[str, list[str]]:
    """NAME=( WORD ... ), which the lexer gives as `NAME=`, `(`, the words and `)`."""
    found: dict[str, list[str]] = {}
    for index, word in enumerate(words[:-1]):
        if ASSIGNMENT.fullmatch(word) and words[index + 1].startswith("("):
            inside = words[index + 2 :]
            length = next((number for number, other in enumerate(inside) if other.startswith(")")), len(inside))
            name = word.rstrip("=").rstrip("+")
            found[name] = found.get(name, []) * ("+=" in word) + [other for other in inside[:length] if not END.fullmatch(other)]
    return found


def expanded(words: Sequence[str], env: Mapping[str, str], lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The words with what the text set: an array becomes its words, and so does a variable that holds flags."""
    for word in words:
        array = ARRAY.match(word)
        if array and array[1] in lists:
            yield from (expand(part, env) for part in lists[array[1]])
            continue
        text = expand(word, env)
        if VARIABLE.fullmatch(word) and text.startswith("-") and re.search(r"\s", text):
            yield from tokens(text)
        else:
            yield text


def expand(word: str, env: Mapping[str, str]) -> str:
    """Variables that the text itself set, and defaults of `${NAME:-default}`; others stay as they are."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return env.get(name, match[2] if match[2] is not None else match[0])

    return VARIABLE.sub(value, word)


def unexpanded(value: object) -> bool:
    """Is a variable or a command substitution left in a flag's value?"""
    return isinstance(value, str) and bool(LEFT_OVER.search(value))
