"""Options of PPO."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


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
    adam_epsilon: float = Field(default=1e-5, gt=0.0, allow_inf_nan=False, description="Adam's epsilon.")
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
    entropy_coefficient: float = Field(
        default=0.01, ge=0.0, allow_inf_nan=False, description="Weight of the entropy bonus (nats)."
    )
    value_coefficient: float = Field(
        default=0.5, ge=0.0, allow_inf_nan=False, description="Weight of half the squared value error."
    )
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
    normalize_observations: bool = Field(
        default=False,
        description="Floating-point observations get mean 0 and standard deviation 1 by running statistics that travel "
        "with the weights; bytes and discrete observations are left alone.",
    )
    observation_bound: float = Field(
        default=10.0, gt=0.0, description="Normalised observations are cut to this many standard deviations."
    )
    normalize_returns: bool = Field(
        default=False,
        description="Rewards are divided by the running standard deviation of discounted returns. Reported returns are "
        "not.",
    )
    reward_bound: float = Field(
        default=10.0, gt=0.0, description="Rewards so divided are cut to this, in standard deviations of the return."
    )
    popart: bool = Field(
        default=False,
        description="The value's targets are normalised by running moments, its last layer is changed so that values "
        "stay what they were (PopArt).",
    )
    popart_rate: float = Field(
        default=0.1, gt=0.0, le=1.0, description="Share of the newest batch in PopArt's moments, per update."
    )
    standard_deviation: Literal["free", "state"] = Field(
        default="free",
        description="Continuous actions: free = one parameter per dimension; state = the network puts it out.",
    )
    initial_log_std: float = Field(
        default=0.0, ge=-20.0, le=2.0, description="Continuous actions: logarithm of the first standard deviation."
    )
    action_transform: Literal["auto", "none", "clip", "tanh_affine"] = Field(
        default="auto",
        description="Continuous actions, from what the policy stores to what the environment takes: clip = cut at the "
        "bounds; tanh_affine = tanh, then stretched to the bounds; auto = clip where there are bounds.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="bf16 = hidden layers (of every network but mlp) compute in bfloat16, when acting and training; "
        "parameters, heads, losses and Adam stay float32.",
    )

    @model_validator(mode="after")
    def _one_scale_of_values(self) -> PPOConfig:
        if self.normalize_returns and self.popart:
            raise ValueError("normalize_returns and popart both scale values: set one of them")
        return self
