"""Network options: what an experiment may write under ``network``, resolved for an observation space. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from srl.api.errors import ExperimentError, SRLError
from srl.api.spaces import SpaceSpec
from srl.api.suggest import did_you_mean

NATURE_CNN_MINIMUM = 36
"""Smallest height and width that the three convolutions leave something of."""

Width = Annotated[int, Field(ge=1, le=65_536)]


class MLPOptions(BaseModel):
    """A multi-layer perceptron with a policy head and a value head; takes observations of any shape, flattened."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["mlp"] = "mlp"
    hidden: tuple[Width, ...] = Field(default=(64, 64), min_length=1, description="Widths of the hidden layers.")
    activation: Literal["tanh", "relu"] = Field(default="tanh", description="After every hidden layer.")
    shared: bool = Field(
        default=False, description="True = policy and value share the hidden layers; false = each has its own."
    )


class NatureCNNOptions(BaseModel):
    """The network of Mnih et al. 2015: three convolutions (8/4, 4/2, 3/1) and one layer, shared by both heads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["nature_cnn"] = "nature_cnn"
    features: Width = Field(default=512, description="Width of the layer after the convolutions.")


OPTIONS: Mapping[str, type[MLPOptions] | type[NatureCNNOptions]] = {"mlp": MLPOptions, "nature_cnn": NatureCNNOptions}


def resolve_network(network: Mapping[str, Any], observation: SpaceSpec, where: str) -> dict[str, Any]:
    """Network options with every default filled in, checked against the observation space.

    Without ``type`` images (three axes) get ``nature_cnn``, everything else ``mlp``.

    Args:
        network: As written in the experiment; may be empty.
        observation: What the network will see.
        where: Key path of ``network``.

    Raises:
        ExperimentError: Unknown type or key (with the nearest name), a bad value, or a space the network cannot take.
    """
    if observation.kind != "box":
        raise ExperimentError(
            [
                SRLError(
                    "the built-in networks cannot take this observation space",
                    where=where,
                    value=observation.describe(),
                    expected="a Box (vectors, or images with channels first)",
                    hint="Wrap the environment, for instance in a one-hot encoding of the number.",
                )
            ]
        )
    kind = network.get("type", "nature_cnn" if len(observation.shape) == 3 else "mlp")
    if kind not in OPTIONS:
        raise ExperimentError(
            [
                SRLError(
                    "unknown network",
                    where=f"{where}.type",
                    value=kind,
                    expected=f"one of {', '.join(OPTIONS)}",
                    hint=did_you_mean(str(kind), OPTIONS),
                )
            ]
        )
    try:
        options = OPTIONS[kind].model_validate({**network, "type": kind})
    except ValidationError as error:
        raise ExperimentError(_problems(error, OPTIONS[kind], where)) from None
    if isinstance(options, NatureCNNOptions):
        _check_image(observation, where)
    return options.model_dump(mode="json")


def observation_scale(observation: SpaceSpec) -> float:
    """What networks multiply an observation with: bytes are scaled to [0, 1], everything else is taken as it is."""
    return 1.0 / 255.0 if observation.dtype == "uint8" else 1.0


def _check_image(observation: SpaceSpec, where: str) -> None:
    shape = observation.shape
    fits = len(shape) == 3 and min(shape[1:]) >= NATURE_CNN_MINIMUM
    if fits:
        return
    last = len(shape) == 3 and shape[2] <= 4 and min(shape[:2]) >= NATURE_CNN_MINIMUM
    raise ExperimentError(
        [
            SRLError(
                "nature_cnn cannot take this observation space",
                where=where,
                value=observation.describe(),
                expected=f"images with channels first, such as Box(4, 84, 84) uint8, at least {NATURE_CNN_MINIMUM} "
                "high and wide",
                hint="The channels are last here: transpose them in the environment." if last else "Or use type: mlp.",
            )
        ]
    )


def _problems(error: ValidationError, model: type[BaseModel], where: str) -> list[SRLError]:
    problems = []
    details = error.errors(include_url=False)
    places = [detail["loc"] for detail in details]
    for detail in details:
        if any(detail["loc"] == place[: len(detail["loc"])] and detail["loc"] != place for place in places):
            continue  # a complaint about a list whose entries are what is wrong
        path = ".".join([where, *(str(part) for part in detail["loc"])])
        if detail["type"] == "extra_forbidden":
            name = str(detail["loc"][-1])
            hint = did_you_mean(name, model.model_fields, "keys")
            problems.append(SRLError(f"unknown key '{name}'", where=path, value=detail["input"], hint=hint))
        else:
            problems.append(SRLError(detail["msg"], where=path, value=detail["input"]))
    return problems
