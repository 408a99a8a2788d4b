"""Which prompts a bench asks, and how one that must be asked again is kept out of the prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from draftsmith.bench.settings import BenchSettings
from draftsmith.job import Job
from draftsmith.measure.prompts import HELDOUT, Prompt, Renderer, heldout_prompts, named_prompts, salt_line
from draftsmith.measure.workload import Deck


@dataclass(frozen=True)
class Prompting:
    """Prompts, and what to do with one that was used before. render: adds token ids; None where only the server has a tokenizer."""

    prompts: list[Prompt]
    salt: Callable[[Prompt, int], Prompt] | None = None
    render: Callable[[Prompt], Prompt] | None = None

    def deck(self, settings: BenchSettings) -> Deck:
        return Deck(self.prompts, settings.seed, self.salt, template_settings(settings))


def template_settings(settings: BenchSettings) -> dict[str, Any]:
    """What asks a chat template to think or not to: Qwen3 and GLM call it enable_thinking, DeepSeek-V3.1 and Granite thinking; a template
    leaves the name that it does not know."""
    if settings.reasoning == "template":
        return {}
    think = settings.reasoning == "on"
    return {"chat_template_kwargs": {"enable_thinking": think, "thinking": think}}


def of_recipe(settings: BenchSettings, job: Job) -> Prompting:
    """Prompts with token ids. The tokenizer is loaded only when it is needed. Raises UsageError, EnvironmentFailed."""

    @cache
    def renderer() -> Renderer:
        return Renderer(job.target, job.trust_remote_code)

    if settings.prompts == HELDOUT:
        prompts = heldout_prompts(job.folder("data"))
    else:
        prompts = [renderer().render(prompt) for prompt in named_prompts(settings.prompts)]
    return Prompting(prompts, lambda prompt, use: renderer().salt(prompt, use), lambda prompt: renderer().render(prompt))


def of_servers(settings: BenchSettings) -> Prompting:
    """Prompts for servers that nobody has a tokenizer of: messages go to the chat endpoint, token ids (of a file) to any other."""
    return Prompting(named_prompts(settings.prompts), salted_messages if settings.endpoint == "chat" else None)


def salted_messages(prompt: Prompt, use: int) -> Prompt:
    """The same conversation with a line of its own at the front."""
    if not prompt.messages:
        return prompt
    first = prompt.messages[0]
    return replace(prompt, messages=({**first, "content": salt_line(prompt.id, use) + first["content"]}, *prompt.messages[1:]))
