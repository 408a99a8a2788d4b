"""The target: an unmodified `AutoModelForCausalLM`, with hooks that read the residual stream at layer boundaries.

Shapes: B batch, T tokens, H target width, F taps * H, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from draftsmith.errors import EnvironmentFailed
from draftsmith.models.taps import check_taps


@dataclass(frozen=True)
class TargetStates:
    """What one forward pass leaves. last_BTH is boundary N: after the last layer, BEFORE the final norm."""

    features_BTF: Tensor
    last_BTH: Tensor


class Target:
    """A frozen target in evaluation mode."""

    def __init__(self, model: nn.Module, taps: Sequence[int]) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.config: Any = self.model.config.get_text_config()
        self.decoder: Any = self.model.get_decoder()
        self.layers = self._find_layers()
        check_taps(taps, len(self.layers))
        self.taps = tuple(taps)

    def _find_layers(self) -> nn.ModuleList:
        expected = self.config.num_hidden_layers
        found = [m for m in self.decoder.children() if isinstance(m, nn.ModuleList) and len(m) == expected]
        if len(found) != 1 or getattr(self.decoder, "norm", None) is None:
            raise EnvironmentFailed(
                f"{type(self.model).__name__}: expected one list of {expected} decoder layers and a final `norm`, found {len(found)} lists",
                hint="this architecture needs a hook of its own in models/target.py",
            )
        return found[0]

    @property
    def device(self) -> torch.device:
        return self.embedding_VH.device

    @property
    def embedding_VH(self) -> Tensor:
        return self.model.get_input_embeddings().weight

    @property
    def head_VH(self) -> Tensor:
        return self.model.get_output_embeddings().weight

    @property
    def final_norm(self) -> nn.Module:
        return self.decoder.norm

    @torch.inference_mode()
    def states(self, token_ids_BT: Tensor, mask_BT: Tensor | None = None) -> TargetStates:
        """Tapped features and boundary N of one batch, on the target's device. mask_BT is 1 on real tokens; pad on the right.

        The output head is not run.
        """
        assert token_ids_BT.ndim == 2, token_ids_BT.shape
        mask_BT = None if mask_BT is None else mask_BT.to(self.device)
        with self._record({*self.taps, len(self.layers)}) as seen:
            self.decoder(input_ids=token_ids_BT.to(self.device), attention_mask=mask_BT, use_cache=False)
        return TargetStates(torch.cat([seen[j] for j in self.taps], -1), seen[len(self.layers)])

    @torch.inference_mode()
    def logits(self, last_BTH: Tensor) -> Tensor:
        """Next-token logits [B, T, V] from boundary N."""
        return self.model.get_output_embeddings()(self.final_norm(last_BTH))

    @contextmanager
    def _record(self, boundaries: set[int]) -> Iterator[dict[int, Tensor]]:
        """Collect the residual stream at the given boundaries during one forward pass."""
        seen: dict[int, Tensor] = {}
        hooks = []
        for j in boundaries:
            if j == 0:
                hooks.append(self.layers[0].register_forward_pre_hook(partial(record_input, seen), with_kwargs=True))
            else:
                hooks.append(self.layers[j - 1].register_forward_hook(partial(record_output, seen, j)))
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()
        missing = boundaries - seen.keys()
        assert not missing, f"boundaries {sorted(missing)} were not reached in the forward pass"


def record_input(seen: dict[int, Tensor], _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forward pre-hook of the first layer: boundary 0."""
    seen[0] = args[0] if args else kwargs["hidden_states"]


def record_output(seen: dict[int, Tensor], boundary: int, _layer: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
    """Forward hook of a layer; some return a tuple whose first entry is the hidden state."""
    seen[boundary] = output[0] if isinstance(output, tuple) else output


def load_target(
    folder: Path,
    taps: Sequence[int],
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    device: torch.device | None = None,
) -> Target:
    """Load a Hugging Face folder onto a device (None: the CPU). Raises EnvironmentFailed when it is not there or not loadable."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    if not (folder / "config.json").is_file():
        raise EnvironmentFailed(
            f"no model at {folder}: config.json is missing",
            hint="draftsmith target fetch smollm2-135m-instruct, or give a Hugging Face folder",
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise EnvironmentFailed(f"cannot load the target in {folder}: {error!r}", hint="check that the folder is complete") from error
    if device is not None:
        torch.nn.Module.to(model, device)
    return Target(model, taps)
