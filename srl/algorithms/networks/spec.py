"""Network options resolved for an observation space: every default filled in, everything checked. No torch.

(The one exception: an encoder of a plugin is imported for its options, and with it whatever its module imports.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from srl.algorithms.networks.options import OPTIONS, DictOptions, MLPEncoderOptions, NoOptions, RecurrentOptions
from srl.api.errors import ExperimentError, SRLError
from srl.api.registry import REGISTRY
from srl.api.spaces import NESTED, SpaceSpec
from srl.api.suggest import did_you_mean

SMALLEST_IMAGE: Mapping[str, int] = {"nature_cnn": 36, "impala_resnet": 8}
"""Smallest height and width by type of network: that of which the convolutions leave something."""
COMMON_KEYS = ("type", "recurrent")
Problems = list[SRLError]


def resolve_network(network: Mapping[str, Any], observation: SpaceSpec, where: str) -> dict[str, Any]:
    """Network options with every default filled in, checked against the observation space.

    Without ``type`` images (three axes, large enough) get ``nature_cnn``, nested observations with an image ``dict``,
    everything else ``mlp``. Networks of plugins are named by their import path in the result.

    Args:
        network: As written in the experiment; may be empty.
        observation: What the network will see.
        where: Key path of ``network``.

    Raises:
        ExperimentError: With every unknown type or key (and the nearest name), bad value, and part of the space that
            the network cannot take.
    """
    problems: Problems = []
    options = {str(key): value for key, value in network.items()}
    recurrent = options.pop("recurrent", None)
    kind = options.pop("type", _default_type(observation))
    if kind == "dict":
        resolved = _resolve_dict(options, observation, where, problems)
    elif kind == "mlp" and recurrent is None:
        resolved = {"type": kind, **_checked(OPTIONS[kind], options, where, problems)}
    else:
        if kind == "mlp":
            _check_shared(options, where, problems)
        resolved = _resolve_encoder(kind, options, observation, where, problems)
    if recurrent is not None:
        resolved["recurrent"] = _checked(RecurrentOptions, recurrent, f"{where}.recurrent", problems)
    if problems:
        raise ExperimentError(problems)
    return resolved


def state_of(network: Mapping[str, Any]) -> tuple[int, int]:
    """S (numbers of recurrent state: an LSTM's h, then its c; a GRU's h) and C (rows per stored state); or (0, 0).

    Args:
        network: Resolved options.
    """
    recurrent = network.get("recurrent")
    if recurrent is None:
        return 0, 0
    return int(recurrent["size"]) * (2 if recurrent["type"] == "lstm" else 1), int(recurrent["rows"])


def _default_type(space: SpaceSpec) -> str:
    if space.kind in NESTED:
        return "dict" if any(is_image(leaf.space) for leaf in space.leaves()) else "mlp"
    return "nature_cnn" if is_image(space) else "mlp"


def is_image(space: SpaceSpec) -> bool:
    """Three axes, the larger two large enough for convolutions, wherever the channels are."""
    large = sorted(space.shape)[1:]
    return space.kind == "box" and len(space.shape) == 3 and min(large) >= SMALLEST_IMAGE["nature_cnn"]


def _resolve_dict(options: Mapping[str, Any], observation: SpaceSpec, where: str, problems: Problems) -> dict[str, Any]:
    if observation.kind not in NESTED:
        problems.append(
            SRLError(
                "dict cannot take this observation space",
                where=where,
                value=observation.describe(),
                expected="a Dict or Tuple",
                hint=f"Without a type it would be {_default_type(observation)}.",
            )
        )
        return {}
    given = options.get("encoders", {})
    if isinstance(given, Mapping):
        options = {**options, "encoders": {str(path): entry for path, entry in given.items()}}
    resolved = _checked(DictOptions, options, where, problems)
    entries: Mapping[str, Any] = resolved.get("encoders", {})
    spaces = {leaf.path: leaf.space for leaf in observation.leaves()}
    for path in entries:
        if path not in spaces:
            problems.append(
                SRLError(
                    "no such part of the observation",
                    where=f"{where}.encoders.{path}",
                    value=path,
                    expected=f"one of {', '.join(spaces)}",
                    hint=did_you_mean(path, spaces, "parts"),
                )
            )
    encoders = {}
    for path, space in spaces.items():
        entry = dict(entries.get(path, {}))
        kind = entry.pop("type", _default_type(space))
        encoders[path] = _resolve_encoder(kind, entry, space, f"{where}.encoders.{path}", problems)
    return {"type": "dict", **resolved, "encoders": encoders}


def _resolve_encoder(
    kind: Any, options: Mapping[str, Any], space: SpaceSpec, where: str, problems: Problems
) -> dict[str, Any]:
    """Options of a network that both heads share, or of a part of one."""
    if kind in ("mlp", *SMALLEST_IMAGE):
        if kind in SMALLEST_IMAGE:
            _check_image(kind, space, where, problems)
        model = MLPEncoderOptions if kind == "mlp" else OPTIONS[kind]
        return {"type": kind, **_checked(model, options, where, problems)}
    plugin = _plugin(kind, space, where, problems)
    if plugin is None:
        return {}
    return {
        "type": REGISTRY.target("network", kind),
        **_checked(getattr(plugin, "Options", NoOptions), options, where, problems),
    }


def _plugin(kind: Any, space: SpaceSpec, where: str, problems: Problems) -> type[Any] | None:
    """The class of a plugin's encoder."""
    where = f"{where}.type"
    known = [name for name in REGISTRY.names("network") if name != "dict" or space.kind in NESTED]
    if not isinstance(kind, str) or (":" not in kind and kind not in known):
        problems.append(
            SRLError(
                "unknown network",
                where=where,
                value=kind,
                expected=f"one of {', '.join(known)}, package.module:Attr or ./file.py:Attr",
                hint=did_you_mean(str(kind), known),
            )
        )
        return None
    try:
        plugin = REGISTRY.resolve("network", kind, where)
    except SRLError as error:
        problems.append(error)
        return None
    options = getattr(plugin, "Options", NoOptions)
    if not isinstance(plugin, type) or not (isinstance(options, type) and issubclass(options, BaseModel)):
        problems.append(
            SRLError(
                "not a network",
                where=where,
                value=kind,
                expected="a torch module class whose Options, if it has any, are a pydantic model",
            )
        )
        return None
    taken = [name for name in COMMON_KEYS if name in options.model_fields]
    if taken:
        problems.append(
            SRLError(f"an option of this network is called '{taken[0]}', which means something else", where=where)
        )
    return plugin


def _check_image(kind: str, space: SpaceSpec, where: str, problems: Problems) -> None:
    shape, smallest = space.shape, SMALLEST_IMAGE[kind]
    three = space.kind == "box" and len(shape) == 3
    last = three and min(shape[:2]) >= max(smallest, 4 * shape[2])  # no image is that narrow, or has so many channels
    if three and min(shape[1:]) >= smallest and not last:
        return
    hint = "Or use type: mlp."
    if last:
        hint = "The channels are last here: transpose them in the environment."
    elif space.kind in NESTED:
        hint = "Use type: dict, which has an encoder per part."
    problems.append(
        SRLError(
            f"{kind} cannot take this observation space",
            where=where,
            value=space.describe(),
            expected=f"images with channels first, such as Box(4, 84, 84) uint8, at least {smallest} high and wide",
            hint=hint,
        )
    )


def _check_shared(options: dict[str, Any], where: str, problems: Problems) -> None:
    """Both heads of a recurrent network sit on one core: what ``shared`` could say is settled."""
    if options.pop("shared", True) is not True:
        problems.append(
            SRLError(
                "policy and value of a recurrent network share everything but their last layers",
                where=f"{where}.shared",
                value=False,
                expected="true, or no such key",
            )
        )


def _checked(model: type[BaseModel], options: Any, where: str, problems: Problems) -> dict[str, Any]:
    """The options as JSON, every default filled in; empty if something is wrong with them."""
    try:
        checked = model.model_validate(options)
    except ValidationError as error:
        problems += _problems(error, model, where)
        return {}
    names = {name for key, field in model.model_fields.items() for name in (key, field.alias) if name}
    unknown = [key for key in options if key not in names] if model.model_config.get("extra") != "allow" else []
    problems += [_unknown_key(key, options[key], model, f"{where}.{key}") for key in unknown]
    return checked.model_dump(mode="json", by_alias=True)


def _problems(error: ValidationError, model: type[BaseModel], where: str) -> Problems:
    problems = []
    details = error.errors(include_url=False)
    places = [detail["loc"] for detail in details]
    for detail in details:
        if any(detail["loc"] == place[: len(detail["loc"])] and detail["loc"] != place for place in places):
            continue  # a complaint about a list whose entries are what is wrong
        path = ".".join([where, *(str(part) for part in detail["loc"])])
        if detail["type"] == "extra_forbidden":
            problems.append(_unknown_key(str(detail["loc"][-1]), detail["input"], model, path))
        else:
            problems.append(SRLError(detail["msg"], where=path, value=detail["input"]))
    return problems


def _unknown_key(key: str, value: Any, model: type[BaseModel], where: str) -> SRLError:
    hint = did_you_mean(key, model.model_fields, "keys")
    return SRLError(f"unknown key '{key}'", where=where, value=value, hint=hint)
