"""Texts that stand before generated tables."""

ALGORITHMS = """\
# Algorithms

Options under `policies.NAME.algorithm`. `type` names the algorithm; a plugin's algorithm has options of its own
([how to write one](../plugins.md#an-algorithm)). What PPO does with them, and where it differs from the paper, is on
[its page](../algorithms/ppo.md).
"""

NETWORKS = """\
# Networks

Options under `policies.NAME.network`. An empty mapping chooses by the observation space: images get `nature_cnn`,
nested observations with an image `dict`, everything else `mlp`. Beside the options of its `type`, every network takes
`recurrent`. A network of a [plugin](../plugins.md#a-network) has options of its own; its heads and its recurrent core
are SRL's.
"""

ENVIRONMENTS = """\
# Environments

Options under `environment`. `type` names the adapter, not the task: the task is its `id`, `entry` or `game`.
Wrappers stand in a list, the innermost first.
"""

SINKS = """\
# Sinks

Where the metrics go beside the trial directory, under `sinks`. `json_lines` and `tensorboard` are written for every
trial and need not be named. The name is the type where no `type` is given. A sink that fails is closed; training goes
on, and `summary.json` says what failed.
"""

BUNDLED = """\
# Bundled experiments

`srl-run NAME` runs them; `srl-run check NAME --resolved > mine.yaml` is a start for your own. What came of them is in
[recorded runs](../results/index.md).
"""

RESULTS = """\
# Recorded runs

Finished trials with the command, the revision, the machine, every seed that was run and the figures. The curves are
over env steps. They say what these experiments did on these machines. They are no promise for other machines.
"""
