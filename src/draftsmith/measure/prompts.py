"""Where prompts come from: the built-in ones, files, held-out samples; and the salt that keeps a repeated prompt out of the prefix cache.

An engine keeps the keys and values of prompts in blocks that are found again by everything up to their end, so a prompt whose first
block differs shares nothing. A repeated prompt therefore gets a line of its own at its very front: twelve letters and digits that
depend on the prompt and on how often it was used. It costs about ten tokens and is the same in both arms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.manifest import sha256_bytes

FORTY = Path(__file__).with_name("prompts.json")
FIVE = Path(__file__).with_name("prompts_five.json")
FIVE_LENGTHS = (256, 1024, 2048)  # output tokens at which the five are asked
HELDOUT = "heldout"  # the prompts of a run's own held-out samples
COLUMNS = ("token_ids", "messages", "turns", "prompt")
Message = Mapping[str, str]


@dataclass(frozen=True)
class Prompt:
    """A prompt: what the server receives. messages are kept for the chat endpoint, where the server renders them."""

    id: str
    token_ids: tuple[int, ...]
    category: str = ""
    messages: tuple[Message, ...] = ()


def user(text: str) -> tuple[Message, ...]:
    """A conversation of one user turn."""
    return ({"role": "user", "content": text},)


def five_prompts() -> list[Prompt]:
    """fib, qsort, arith, json and haiku, not yet rendered; each asks for enough to fill the longest of FIVE_LENGTHS."""
    return [Prompt(f"five-{name}", (), name, user(text)) for name, text in json.loads(FIVE.read_text()).items()]


def forty_prompts() -> list[Prompt]:
    """Forty short user turns, not yet rendered."""
    return [Prompt(f"builtin-{number:02d}", (), "builtin", user(text)) for number, text in enumerate(json.loads(FORTY.read_text()))]


BUILTIN: dict[str, Callable[[], list[Prompt]]] = {"builtin": forty_prompts, "five": five_prompts}


def named_prompts(source: str) -> list[Prompt]:
    """builtin, five, or the prompts of a file, not yet rendered. Raises UsageError."""
    return BUILTIN[source]() if source in BUILTIN else read_prompts(Path(source))


def heldout_prompts(data: Path) -> list[Prompt]:
    """The held-out prompts in the folder of a data stage: token ids as the engine saw them, and their turns for the chat endpoint.

    Raises EnvironmentFailed on a missing or damaged file.
    """
    from draftsmith.samples import read_samples, samples_file

    return [
        Prompt(sample.id, tuple(map(int, sample.prompt_ids)), sample.source, tuple(sample.turns[:-1]))
        for sample in read_samples(samples_file(data, "heldout"))
    ]


class Renderer:
    """The target's tokenizer and chat template. Raises EnvironmentFailed when the folder has no tokenizer."""

    def __init__(self, target: Path, trust_remote_code: bool = False) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(target, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            hint = "the target folder needs tokenizer.json"
            raise EnvironmentFailed(f"cannot load the tokenizer of {target}: {error!r}", hint=hint) from error

    def ids(self, text: str, special: bool = False) -> tuple[int, ...]:
        return tuple(int(i) for i in self.tokenizer.encode(text, add_special_tokens=special))

    def render(self, prompt: Prompt) -> Prompt:
        """`prompt` with token ids: through the chat template; without one, the plain text of its turns. Ids that are there stay."""
        if prompt.token_ids:
            return prompt
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(list(prompt.messages), tokenize=False, add_generation_prompt=True)
            return replace(prompt, token_ids=self.ids(text))
        return replace(prompt, token_ids=self.ids("\n".join(turn["content"] for turn in prompt.messages), special=True))

    def salt(self, prompt: Prompt, use: int) -> Prompt:
        """`prompt` with a line of its own at the front (after a leading bos token), different for every `use`."""
        line = salt_line(prompt.id, use)
        ids = prompt.token_ids
        start = 1 if ids and ids[0] == self.tokenizer.bos_token_id else 0
        messages = prompt.messages
        if messages:
            messages = ({**messages[0], "content": line + messages[0]["content"]}, *messages[1:])
        return replace(prompt, token_ids=(*ids[:start], *self.ids(line), *ids[start:]) if ids else (), messages=messages)


def salt_line(prompt_id: str, use: int) -> str:
    """Twelve characters that depend on both, and a line end."""
    return sha256_bytes(f"{prompt_id}:{use}".encode())[:12] + "\n"


# --- files -----------------------------------------------------------------------------------------------------------


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a .jsonl or .parquet file, in file order, not yet rendered.

    Each row has one of: token_ids (list of int; cut at num_prompt_tokens where that column is), messages (list of {role, content}),
    turns (the same, or a list of user texts of which the first is asked), prompt (text of a user turn). Turns of the assistant at the
    end are left out. Optional: id, category or source. Raises UsageError with the file and the row.
    """
    rows = rows_of(path)
    if not rows:
        raise UsageError(f"{path} holds no prompts", hint=f"expected rows with one of {', '.join(COLUMNS)}")
    prompts = [prompt_from(row, f"{path}, row {number}", f"{path.stem}-{number:05d}") for number, row in enumerate(rows, start=1)]
    seen: set[str] = set()
    for number, prompt in enumerate(prompts, start=1):
        if prompt.id in seen:
            raise UsageError(f"{path}, row {number}: the id {prompt.id!r} is there twice", hint="ids tell replies apart: make them unique")
        seen.add(prompt.id)
    return prompts


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="give the path of a .jsonl or .parquet file")
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(path).to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(f"{path} is not a parquet file: {error}", hint="rename it if it is JSON lines") from error
    if path.suffix not in (".jsonl", ".ndjson"):
        raise UsageError(f"{path}: cannot read {path.suffix or 'a file without an ending'}", hint="expected .jsonl or .parquet")
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number} is not JSON: {error}", hint="one JSON object a line") from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number} is a {type(row).__name__}", hint="one JSON object a line")
        rows.append(row)
    return rows


def prompt_from(row: Mapping[str, Any], where: str, default_id: str) -> Prompt:
    """One row. Raises UsageError."""
    name = str(row.get("id") or default_id)
    category = str(row.get("category") or row.get("source") or "")
    filled = [column for column in COLUMNS if row.get(column) not in (None, "", [])]
    if not filled:
        there = ", ".join(row) or "nothing"
        raise UsageError(f"{where}: no prompt; found {there}", hint=f"expected one of {', '.join(COLUMNS)}, not empty")
    column, value = filled[0], row[filled[0]]
    if column == "token_ids":
        ids: list[Any] = value if isinstance(value, list) else [None]
        if not all(isinstance(i, int) and i >= 0 for i in ids):
            raise UsageError(f"{where}: token_ids is not a list of numbers from 0 up", hint="use the column prompt for text")
        return Prompt(name, tuple(ids[: row.get("num_prompt_tokens") or len(ids)]), category)
    messages = user(value) if column == "prompt" and isinstance(value, str) else messages_from(value, f"{where}: {column}")
    return Prompt(name, (), category, messages)


def messages_from(value: Any, where: str) -> tuple[Message, ...]:
    """A conversation that ends with a user turn. Raises UsageError."""
    if isinstance(value, str) and value.startswith("["):  # `turns` of samples-*.parquet is JSON text
        value = json.loads(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return user(value[0])
    turns: Sequence[Any] = value if isinstance(value, list) else [None]
    if not all(isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str) for turn in turns):
        raise UsageError(f"{where} is not a conversation", hint='expected [{"role": "user", "content": "..."}, ...]')
    while turns and turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    if not turns or turns[-1]["role"] not in ("user", "tool"):
        raise UsageError(f"{where} has no user turn at its end", hint="the target answers the last user turn")
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)
