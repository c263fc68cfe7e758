"""What an experiment may write under ``network``, by type. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Width = Annotated[int, Field(ge=1, le=65_536)]


class NoOptions(BaseModel):
    """Of a network that has no options."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MLPEncoderOptions(BaseModel):
    """A multi-layer perceptron without heads: part of a larger network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: tuple[Width, ...] = Field(
        default=(64, 64), description="Widths of the hidden layers; none = the observation itself."
    )
    activation: Literal["tanh", "relu"] = Field(default="tanh", description="After every hidden layer.")


class MLPOptions(BaseModel):
    """A multi-layer perceptron with a policy head and a value head; takes observations of any space, flattened."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: tuple[Width, ...] = Field(default=(64, 64), min_length=1, description="Widths of the hidden layers.")
    activation: Literal["tanh", "relu"] = Field(default="tanh", description="After every hidden layer.")
    shared: bool = Field(
        default=False, description="True = policy and value share the hidden layers; false = each has its own."
    )


class NatureCNNOptions(BaseModel):
    """The network of Mnih et al. 2015: three convolutions (8/4, 4/2, 3/1) and one layer, shared by both heads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: Width = Field(default=512, description="Width of the layer after the convolutions.")


class ImpalaOptions(BaseModel):
    """The deep network of Espeholt et al. 2018 (IMPALA): per section a convolution, pooling and two residual blocks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channels: tuple[Width, ...] = Field(
        default=(16, 32, 32), min_length=1, description="Channels of each section; each halves height and width."
    )
    features: Width = Field(default=256, description="Width of the layer after the sections.")


class DictOptions(BaseModel):
    """One encoder per part of a Dict or Tuple observation, and layers behind all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoders: Mapping[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Path of a part (keys joined by dots) to its encoder: a type and options. Parts not named get "
        "nature_cnn if they are images, else mlp.",
    )
    hidden: tuple[Width, ...] = Field(
        default=(256,), description="Widths of the layers behind the encoders' features, one after the other."
    )
    activation: Literal["tanh", "relu"] = Field(default="relu", description="After each of those layers.")


class RecurrentOptions(BaseModel):
    """A recurrent core between the encoder and the heads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["lstm", "gru"] = Field(default="lstm", description="Kind of cell.")
    size: Width = Field(default=128, description="Width of the hidden state (an LSTM has a cell state beside it).")
    rows: int = Field(
        default=16,
        ge=1,
        description="C: blocks store the state at every C-th row, and gradients flow through C rows; divides the "
        "algorithm's rows.",
    )
    learned_initial_state: bool = Field(
        default=False, description="Episodes start from learned parameters instead of zeros."
    )


OPTIONS: Mapping[str, type[BaseModel]] = {
    "mlp": MLPOptions,
    "nature_cnn": NatureCNNOptions,
    "impala_resnet": ImpalaOptions,
    "dict": DictOptions,
}
"""Types that SRL brings. Others are encoders that plugins name."""
