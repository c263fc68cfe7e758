"""The pages of the experiment's keys and of the options of what is built in."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from option_tables import Section, heading, sections, table
from pydantic import BaseModel

from srl.algorithms.networks import options as networks
from srl.api.experiment import Experiment
from srl.api.loading import bundled_experiments
from srl.api.registry import BUILT_IN, REGISTRY

EXPERIMENT_INTRODUCTION = """\
# Experiment

Every key of an experiment file. Generated from the models that check the file: what is not here is an error, with
the nearest known name. `NAME` stands for a name of yours, `N` for the number of a list's entry, counted from 0.

- A key path such as `stop.env_steps` is what messages name and what the command line takes:
  `srl-run my.yaml stop.env_steps=50_000`.
- **required**: the key has no default. All others may be left out.
- `null` is a value. What it means is said where it is allowed.
- `srl-run check my.yaml --resolved` prints the file with every default. `srl-run schema` prints the JSON Schema for
  editors.

Options of what `type:` names are on pages of their own: [algorithms](algorithms.md), [networks](networks.md),
[environments and wrappers](environments.md).
"""


def experiment_page() -> str:
    """Keys of the experiment, all models of the graph included."""
    return _page(EXPERIMENT_INTRODUCTION, sections(Experiment))


def algorithms_page(introduction: str) -> str:
    """Options of every built-in algorithm."""
    found: list[Section] = []
    for name in sorted(BUILT_IN["algorithm"]):
        config = REGISTRY.resolve("algorithm", name).config
        found += sections(config, "policies.NAME.algorithm", f"type: {name}")
    return _page(introduction, found)


def networks_page(introduction: str) -> str:
    """Options of the built-in networks."""
    found: list[Section] = []
    for name, model in networks.OPTIONS.items():
        found += sections(model, "policies.NAME.network", f"type: {name}")
    return _page(introduction, [*found, *sections(networks.RecurrentOptions, "policies.NAME.network.recurrent")])


def environments_page(introduction: str) -> str:
    """Options of the built-in environment types."""
    found: list[Section] = []
    for name, target in sorted(BUILT_IN["environment"].items()):
        found += sections(options_model(target), "environment", f"type: {name}")
    for name in sorted(BUILT_IN["wrapper"]):
        wrapper = REGISTRY.resolve("wrapper", name)
        found += sections(wrapper.Options, "environment.wrappers.N", f"type: {name}", str(wrapper.__doc__))
    return _page(introduction, found)


def bundled_page(introduction: str) -> str:
    """The bundled experiments with their files."""
    parts = [introduction]
    for name, path in bundled_experiments().items():
        summary, _, text = path.read_text(encoding="utf-8").partition("\n")
        parts.append(f"## `{name}` {{ #{name} }}\n\n{summary.lstrip('# ')}\n\n```yaml\n{text.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def sinks_page(introduction: str) -> str:
    """Options of the built-in metrics sinks."""
    found: list[Section] = []
    for name in sorted(BUILT_IN["metrics_sink"]):
        sink = REGISTRY.resolve("metrics_sink", name)
        found += sections(sink.Options, "sinks.NAME", f"type: {name}", str(sink.__doc__).partition("\n\n")[0])
    return _page(introduction, found)


def options_model(target: str) -> type[BaseModel]:
    """The options model of a factory: in the same module, with ``Options`` in place of ``Factory``."""
    module_name, _, attribute = target.partition(":")
    module: ModuleType = importlib.import_module(module_name)
    model: type[BaseModel] = getattr(module, attribute.replace("Factory", "Options"))
    return model


def _page(introduction: str, found: Iterable[Section]) -> str:
    parts = [introduction]
    parts += [f"{heading(section, 2)}\n{table(section)}" for section in found]
    return "\n\n".join(parts) + "\n"
