"""verify wiring inside the engines: the plug-ins of vLLM and SGLang against stand-ins of the classes that they listen to.

The stand-ins have the parameters that were read in the engines' packages: tests/data/engine_hooks.json, made by tests/engine_hooks.py.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from importlib import metadata, util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.served import calls, read_calls
from draftsmith.engines.sglang import features as sglang_features
from draftsmith.engines.vllm import features as vllm_features

torch.set_num_threads(1)
READ = json.loads((Path(__file__).resolve().parents[1] / "data" / "engine_hooks.json").read_text())


def launch_of(method: str = "eagle3", **env: str) -> Launch:
    flags = {"enable_prefix_caching": True, "dtype": "auto", "cuda-graph-backend-decode": "full"}
    return Launch("speculative", Path("t"), flags, env, Drafting(method, Path("d"), 3))


def as_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plug-in as the engine imports it from the folder that the launch was given, writing to `folder`."""
    monkeypatch.syspath_prepend(str(folder / "plugin"))
    monkeypatch.setenv("DRAFTSMITH_FEATURES", str(folder))
    monkeypatch.delitem(sys.modules, "draftsmith_rows", raising=False)
    spec = util.spec_from_file_location("draftsmith_features", folder / "plugin" / "draftsmith_features.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same_parameters(function: Callable[..., Any], engine: str, name: str) -> None:
    """A stand-in that the plug-in works with is called as the real one is."""
    assert list(inspect.signature(function).parameters) == READ[engine]["parameters"][name], name


# --- vLLM --------------------------------------------------------------------------------------------------------------


class Eagle3:
    """Stands for vLLM's Eagle3LlamaForCausalLM: the same two calls."""

    def combine_hidden_states(self, hidden_states: Tensor) -> Tensor:
        return hidden_states[:, :4] * 2

    def forward(self, input_ids: Tensor, positions: Tensor, hidden_states: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        return hidden_states + 1


class DFlash:
    """Stands for vLLM's DFlashQwen3ForCausalLM."""

    def combine_hidden_states(self, hidden_states: Tensor) -> Tensor:
        return hidden_states[:, :4] * 2

    def precompute_and_store_context_kv(
        self, context_states: Tensor, context_positions: Tensor, context_slot_mapping: Tensor | None = None
    ) -> None:
        self.stored = [tensor for tensor in (context_states, context_positions, context_slot_mapping) if tensor is not None]

    def forward(self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        return input_ids + positions


@pytest.fixture
def vllm_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """vLLM's plug-in with stand-ins of vLLM's modules; `registered` notes what it registers."""
    registered: dict[str, str] = {}
    vllm: Any = ModuleType("vllm")
    archs = {"LlamaForCausalLMEagle3", "LlamaForCausalLM", "DFlashDraftModel"}
    vllm.ModelRegistry = SimpleNamespace(get_supported_archs=lambda: archs, register_model=registered.__setitem__)
    modules: dict[str, Any] = {name: ModuleType(name) for name in ("vllm.model_executor", "vllm.model_executor.models")}
    for name, made in (("llama_eagle3", {"Eagle3LlamaForCausalLM": Eagle3}), ("qwen3_dflash", {"DFlashQwen3ForCausalLM": DFlash})):
        modules[f"vllm.model_executor.models.{name}"] = SimpleNamespace(**made)
    for name, module in {"vllm": vllm, **modules}.items():
        monkeypatch.setitem(sys.modules, name, module)
    vllm_features.with_features(launch_of(), tmp_path)
    module = as_module(tmp_path, monkeypatch)
    module.registered = registered
    return module


def test_vllm_gets_a_class_for_the_drafters_that_it_has(vllm_plugin: Any) -> None:
    vllm_plugin.install()
    assert vllm_plugin.registered == {
        "LlamaForCausalLMEagle3": "draftsmith_features:Eagle3LlamaForCausalLM",
        "DFlashDraftModel": "draftsmith_features:DFlashQwen3ForCausalLM",
    }
    made = vllm_plugin.Eagle3LlamaForCausalLM
    assert made is vllm_plugin.Eagle3LlamaForCausalLM and issubclass(made, Eagle3) and made.__name__ == "Eagle3LlamaForCausalLM"
    with pytest.raises(AttributeError):
        _ = vllm_plugin.SomethingElse


def test_vllm_s_eagle3_recorder_writes_first_steps_only_and_changes_nothing(vllm_plugin: Any, tmp_path: Path) -> None:
    drafter, plain = vllm_plugin.Eagle3LlamaForCausalLM(), Eagle3()
    features = torch.randn(3, 12, dtype=torch.bfloat16)
    ids, positions = torch.tensor([7, 8, 9, 0, 0], dtype=torch.int32), torch.tensor([4, 5, 6, 0, 0])  # two rows of padding
    merged = drafter.combine_hidden_states(features)
    assert torch.equal(merged, plain.combine_hidden_states(features))
    for _ in range(3):  # the rollout's further steps have no features of the target
        assert torch.equal(drafter.forward(ids, positions, merged), plain.forward(ids, positions, merged))
    (written,) = calls(tmp_path)
    tensors = load_file(written)
    assert torch.equal(tensors["features"], features)
    assert tensors["input_ids"].tolist() == [7, 8, 9] and tensors["positions"].tolist() == [4, 5, 6]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [written.name]


def test_positions_of_three_axes_give_the_first(vllm_plugin: Any, tmp_path: Path) -> None:
    drafter = vllm_plugin.Eagle3LlamaForCausalLM()
    drafter.combine_hidden_states(torch.zeros(2, 4))
    drafter.forward(torch.tensor([1, 2, 0]), torch.tensor([[5, 6, 0], [0, 0, 0], [0, 0, 0]]), torch.zeros(3, 4))
    assert load_file(calls(tmp_path)[0])["positions"].tolist() == [5, 6]


def test_vllm_s_dflash_recorder_writes_the_context_and_the_block(vllm_plugin: Any, tmp_path: Path) -> None:
    drafter, plain = vllm_plugin.DFlashQwen3ForCausalLM(), DFlash()
    drafter.precompute_and_store_context_kv(torch.zeros(4, 4), torch.arange(4))  # the engine's own dry run: nothing of the target
    drafter.forward(torch.zeros(4, dtype=torch.int64), torch.arange(4))
    assert calls(tmp_path) == []
    features, positions, slots = torch.randn(3, 12), torch.tensor([4, 5, 6]), torch.tensor([40, 50, 60])
    drafter.precompute_and_store_context_kv(drafter.combine_hidden_states(features), positions, slots)
    plain.precompute_and_store_context_kv(plain.combine_hidden_states(features), positions, slots)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(drafter.stored, plain.stored, strict=True))
    block, places = torch.tensor([9, 2, 2]), torch.tensor([7, 8, 9])
    assert torch.equal(drafter.forward(block, places), plain.forward(block, places))
    context, filled = (load_file(path) for path in calls(tmp_path))
    assert torch.equal(context["features"], features) and context["positions"].tolist() == [4, 5, 6] and "input_ids" not in context
    assert filled["block_ids"].tolist() == [9, 2, 2] and filled["block_positions"].tolist() == [7, 8, 9]


# --- SGLang ------------------------------------------------------------------------------------------------------------


class Registry:
    """Stands for SGLang's HookRegistry: what was registered, and a caller that runs the hook before the original, as SGLang does."""

    def __init__(self) -> None:
        self.hooks: dict[str, tuple[Any, str]] = {}

    def register(self, target: str, hook: Any, hook_type: str) -> None:
        self.hooks[target] = (hook, hook_type)

    def call(self, target: str, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        hook, kind = self.hooks[target]
        assert kind == "before" and hook(*args, **named) is None  # None: arguments stay as they are
        return original(*args, **named)


EAGLE3_FORWARD = "sglang.srt.models.llama_eagle3.LlamaForCausalLMEagle3.forward"
DFLASH_FORWARD = "sglang.srt.models.dflash.DFlashDraftModel.forward"
DFLASH_APPEND = "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc"


def sglang_eagle3_forward(
    self: Any,
    input_ids: Tensor,
    positions: Tensor,
    forward_batch: Any,
    input_embeds: Tensor | None = None,
    get_embedding: bool = False,
    pp_proxy_tensors: Any = None,
) -> Tensor:
    return input_ids + positions


def sglang_dflash_append(
    self: Any, target_hidden: Tensor, cache_loc: Tensor, positions: Tensor, cache_loc_2d: Tensor | None = None, commit_lens: Any = None
) -> Tensor:
    return positions


def batch(mode: str, features: Tensor | None) -> SimpleNamespace:
    """A ForwardBatch as far as it is read: its mode, and the drafter's input."""
    forward_mode = SimpleNamespace(is_decode=lambda: mode == "decode", is_idle=lambda: mode == "idle")
    return SimpleNamespace(forward_mode=forward_mode, spec_info=SimpleNamespace(hidden_states=features))


@pytest.fixture
def hooked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Registry:
    """SGLang's plug-in as a scheduler process has it; `request.param` is the drafting method."""
    registry = Registry()
    hooks: Any = ModuleType("sglang.srt.plugins.hook_registry")
    hooks.HookRegistry, hooks.HookType = registry, SimpleNamespace(BEFORE="before")
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    made = sglang_features.with_features(launch_of(request.param), tmp_path)
    monkeypatch.setenv("DRAFTSMITH_DRAFTING", made.env["DRAFTSMITH_DRAFTING"])
    module = as_module(tmp_path, monkeypatch)
    module.install()  # the launching process
    assert registry.hooks == {}
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    module.install()
    return registry


@pytest.mark.parametrize("hooked", ["eagle3"], indirect=True)
def test_sglang_s_eagle3_hook_writes_prefills_and_verified_rounds(hooked: Registry, tmp_path: Path) -> None:
    same_parameters(sglang_eagle3_forward, "sglang", EAGLE3_FORWARD)
    features = torch.randn(3, 12, dtype=torch.bfloat16)
    ids, positions = torch.tensor([7, 8, 9, 0]), torch.tensor([4, 5, 6, 0])
    for mode, given in (("extend", features), ("decode", features[:, :4]), ("idle", features), ("extend", None), ("extend", features[:0])):
        out = hooked.call(EAGLE3_FORWARD, sglang_eagle3_forward, None, ids, positions, batch(mode, given))
        assert torch.equal(out, ids + positions)
    (written,) = calls(tmp_path)
    tensors = load_file(written)
    assert torch.equal(tensors["features"], features)
    assert tensors["input_ids"].tolist() == [7, 8, 9] and tensors["positions"].tolist() == [4, 5, 6]


@pytest.mark.parametrize("hooked", ["dflash"], indirect=True)
def test_sglang_s_dflash_hooks_write_accepted_rows_and_blocks(hooked: Registry, tmp_path: Path) -> None:
    """A prefill of 3 tokens, a block behind it, and the verified block of which two rows stay."""
    same_parameters(sglang_dflash_append, "sglang", DFLASH_APPEND)
    same_parameters(sglang_eagle3_forward, "sglang", DFLASH_FORWARD)
    features, loc = torch.randn(3, 12), torch.arange(3)
    append = {"target_hidden": features, "cache_loc": loc, "positions": torch.arange(3)}
    hooked.call(DFLASH_APPEND, sglang_dflash_append, None, **append)
    hooked.call(DFLASH_APPEND, sglang_dflash_append, None, **append | {"target_hidden": features[:0]})
    block, places = torch.tensor([9, 2, 2]), torch.tensor([3, 4, 5])
    hooked.call(DFLASH_FORWARD, sglang_eagle3_forward, None, block, places, batch("verify", None))
    verified = {"target_hidden": features * 2, "positions": places, "cache_loc_2d": loc[None], "commit_lens": torch.tensor([2])}
    hooked.call(DFLASH_APPEND, sglang_dflash_append, None, cache_loc=loc, **verified)
    prompt, filled, accepted = (load_file(path) for path in calls(tmp_path))
    assert prompt["positions"].tolist() == [0, 1, 2] and "input_ids" not in prompt
    assert filled["block_ids"].tolist() == [9, 2, 2] and filled["block_positions"].tolist() == [3, 4, 5]
    assert accepted["positions"].tolist() == [3, 4] and torch.equal(accepted["features"], features[:2] * 2)
    served = read_calls(calls(tmp_path), 3, 6)
    assert served.input_ids_T is None and served.positions_T.tolist() == [0, 1, 2, 3, 4]
    assert [(block.ids, block.positions, block.context) for block in served.blocks] == [((9, 2, 2), (3, 4, 5), 3)]


def test_the_stand_ins_are_called_as_the_engines_are() -> None:
    for function, name in ((Eagle3.combine_hidden_states, "llama_eagle3.Eagle3LlamaForCausalLM.combine_hidden_states"),):
        same_parameters(function, "vllm", f"vllm.model_executor.models.{name}")
    for function in (DFlash.combine_hidden_states, DFlash.precompute_and_store_context_kv, DFlash.forward):
        same_parameters(function, "vllm", f"vllm.model_executor.models.qwen3_dflash.DFlashQwen3ForCausalLM.{function.__name__}")
    same_parameters(Eagle3.forward, "vllm", "vllm.model_executor.models.llama_eagle3.Eagle3LlamaForCausalLM.forward")


# --- the launches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_launch_finds_the_plugin_by_its_entry_point(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, group = (vllm_features, "vllm.general_plugins") if engine == "vllm" else (sglang_features, "sglang.srt.plugins")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    made = module.with_features(launch_of(PYTHONPATH="/mine"), tmp_path)
    if engine == "vllm":
        assert made.flags["enforce-eager"] is True and made.flags["enable-prefix-caching"] is False
        assert "enable_prefix_caching" not in made.flags
    else:
        assert made.flags["disable-cuda-graph"] is True and made.flags["disable-radix-cache"] is True
        assert "cuda-graph-backend-decode" not in made.flags and made.env["DRAFTSMITH_DRAFTING"] == "eagle3"
    plugin, mine = made.env["PYTHONPATH"].split(":")
    assert mine == "/mine" and made.env["DRAFTSMITH_FEATURES"] == str(tmp_path) and not {"VLLM_PLUGINS", "SGLANG_PLUGINS"} & set(made.env)
    (found,) = metadata.Distribution.discover(path=[plugin])
    (entry,) = found.entry_points
    assert (entry.group, entry.name, entry.value) == (group, "draftsmith_features", "draftsmith_features:install")
    assert (Path(plugin) / "draftsmith_features.py").read_text() == module.SCRIPT.read_text()
    assert (Path(plugin) / "draftsmith_rows.py").is_file()


@pytest.mark.parametrize(("chosen", "vllm", "sglang"), [("other", ["other"], ["other"]), ("", [""], None)])
def test_a_list_of_chosen_plugins_gets_ours_too(tmp_path: Path, chosen: str, vllm: Sequence[str], sglang: Sequence[str] | None) -> None:
    """An empty list is none for vLLM, and all for SGLang."""
    made = vllm_features.with_features(launch_of(VLLM_PLUGINS=chosen), tmp_path)
    assert made.env["VLLM_PLUGINS"].split(",") == [*vllm, "draftsmith_features"]
    made = sglang_features.with_features(launch_of(SGLANG_PLUGINS=chosen), tmp_path)
    assert made.env["SGLANG_PLUGINS"] == ("" if sglang is None else ",".join([*sglang, "draftsmith_features"]))
