"""Options of PPO."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PPOConfig(BaseModel):
    """Options under ``policies.NAME.algorithm`` with ``type: ppo``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    rows: int = Field(default=128, ge=1, le=65_536, description="T: env steps per environment and block.")
    gamma: float = Field(default=0.99, ge=0.0, le=1.0, description="Discount per env step.")
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0, description="Lambda of the advantage estimate (GAE).")
    learning_rate: float = Field(default=2.5e-4, gt=0.0, allow_inf_nan=False, description="Step size of Adam.")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        default="constant", description="linear = falls to 0 over the trial's budget (stop.env_steps or stop.updates)."
    )
    adam_epsilon: float = Field(default=1e-5, gt=0.0, description="Adam's epsilon.")
    epochs: int = Field(default=4, ge=1, description="Passes over the data of one update.")
    minibatch_rows: int = Field(
        default=512,
        ge=1,
        description="Most transitions per gradient step, over all trainer ranks. An epoch is cut into as few "
        "minibatches as that allows, as equal as possible.",
    )
    clip_range: float = Field(default=0.2, gt=0.0, description="Epsilon: bound on the change of the probability ratio.")
    value_clip_range: float | None = Field(
        default=None, gt=0.0, description="Bound on the change of the value, in units of return; null = no bound."
    )
    entropy_coefficient: float = Field(default=0.01, ge=0.0, description="Weight of the entropy bonus (nats).")
    value_coefficient: float = Field(default=0.5, ge=0.0, description="Weight of half the squared value error.")
    max_gradient_norm: float | None = Field(
        default=0.5, gt=0.0, description="Gradients are scaled down to this norm; null = never."
    )
    normalize_advantages: bool = Field(
        default=True,
        description="Advantages of each minibatch get mean 0 and standard deviation 1 (a single sample gets 0).",
    )
    target_kl: float | None = Field(
        default=None,
        gt=0.0,
        description="No further epochs after one with a larger mean approximate KL divergence (nats); null = off.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="bf16 = hidden layers of a CNN compute in bfloat16, when acting and training; parameters, heads, "
        "losses and Adam stay float32.",
    )
