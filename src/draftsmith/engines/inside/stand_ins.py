"""Stand-ins for what a slim environment lacks, so that an engine's argument resolution runs without a GPU and without its kernels.

Nothing here computes anything: a package that is not installed becomes an object that can be imported, decorated with and subclassed,
and the GPU answers questions about itself. Only what an engine decides from its arguments, configs and these answers is real.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import stat
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NOT_THERE = {"active"}  # triton.runtime.driver.active: there is no driver, and asking for it fails as it would


def named(name: str) -> Any:
    """What a name of a stand-in is: a class when it is spelled like one, else Anything."""
    if name.startswith("__") or name in NOT_THERE:
        raise AttributeError(name)
    return Kind(name, (Anything,), {}) if name.lstrip("_")[:1].isupper() and not name.isupper() else Anything()


class Kind(type):
    """A class of a stand-in; it too has every name."""

    def __getattr__(cls, name: str) -> Any:
        return named(name)

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0


class Anything(metaclass=Kind):
    """Called, subscripted, subclassed or asked for an attribute it gives another one; as a decorator it gives back the function."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Anything()

    def __getattr__(self, name: str) -> Any:
        return named(name)

    def __getitem__(self, key: object) -> Any:
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __or__(self, other: object) -> Any:
        return Anything()

    __ror__ = __or__  # in a type: X | None

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (object,)

    @staticmethod
    def __get_pydantic_core_schema__(*about: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()  # as the type of a field


class Package(types.ModuleType):
    """A module whose every name is Anything."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        return named(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the named packages and everything below them. Comes last, so that an installed package is itself."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in(names: Sequence[str]) -> list[str]:
    """Stand in for those of the packages that are not installed; returns them."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    sys.meta_path.append(Finder(missing))
    return missing


def torchvision_operators() -> None:
    """The package index's torchvision does not fit the CPU build of torch: declare the two operators it looks for on import."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT.append(library)


def kernels_not_there(packages: Sequence[str]) -> None:
    """What an engine registers about operators of a stand-in is dropped: torch has no such operators."""
    import torch

    real = torch.library.register_fake

    def register_fake(operator: Any, function: Any = None, /, **kwargs: Any) -> Any:
        if isinstance(operator, str) and operator.split("::")[0] in packages:
            return function if function is not None else lambda given: given
        return real(operator, function, **kwargs)

    torch.library.register_fake = register_fake


KEPT: list[object] = []  # a library of operators is gone with its object


def pretend_gpu(gpu: dict[str, Any]) -> None:
    """torch and nvidia-smi say that `gpu` is there: {"name", "capability": [9, 0], "memory_mib", "count", "cuda": "12.9"}."""
    import torch

    size = gpu["memory_mib"] * 2**20
    major, minor = gpu["capability"]
    about = types.SimpleNamespace(
        name=gpu["name"], major=major, minor=minor, total_memory=size, multi_processor_count=132, gcnArchName="", warp_size=32
    )
    said: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: gpu["count"],
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: gpu["name"],
        "get_device_properties": lambda device=None: about,
        "mem_get_info": lambda device=None: (size, size),
    }
    for name, answer in said.items():
        setattr(torch.cuda, name, answer)
    torch.version.cuda = gpu["cuda"]
    folder = Path(tempfile.mkdtemp(prefix="draftsmith-gpu-"))
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\n" + f"echo {gpu['memory_mib']}\n" * gpu["count"])
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    os.environ["PATH"] = f"{folder}:{os.environ.get('PATH', '')}"
