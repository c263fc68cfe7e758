r"""One trainer rank against several, in alternating runs (1 2 1 2 ...): env steps trained per second, and the ratio.

    python benchmarks/data_parallel.py --env-steps 200000 --name data_parallel_pong \
        --set workers.evaluator.interval_env_steps=null --set workers.evaluator.episodes=1
    python benchmarks/data_parallel.py --experiment benchmarks/experiments/cartpole_inline.yaml --env-steps 1500000 \
        --name data_parallel_cartpole

Graph, batch, minibatches and gradient steps are the same in every run; only 'workers.trainer.count' differs, so each
of R ranks computes 1/R of every minibatch. There are as many actors as the largest number of ranks (each block of an
update goes to one rank). Beside rate and ratio: the share of time that rank 0 waited for the others. How runs are
measured is told in compare.py. Results go to benchmarks/results/NAME.json.
"""

from __future__ import annotations

import argparse

from compare import SRL_OPTIONS, SRL_RUN, System, run_rounds, summarise, table, write_results


def system(experiment: str, ranks: int, actors: int, environments: int, overrides: list[str]) -> System:
    """A trial with so many trainer ranks; no evaluation beside it."""
    graph = (
        f"workers.trainer.count={ranks}",
        f"workers.actors.count={actors}",
        f"workers.actors.environments={environments}",
        "placement=processes",
        "stop.evaluation_return=null",
        "stop.wall_seconds=null",
    )
    return System((SRL_RUN, experiment, *graph, *overrides, *SRL_OPTIONS))


def main() -> None:
    """Run the rounds, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="atari_pong_ppo", help="name or path (default atari_pong_ppo)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="numbers of ranks; the first = yardstick")
    parser.add_argument("--actors", type=int, default=2, help="actors; a multiple of every number of ranks (default 2)")
    parser.add_argument("--environments", type=int, default=8, help="environments per actor (default 8)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further override")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; each runs every number once (default 5)")
    parser.add_argument("--env-steps", type=int, default=200_000, help="env steps per run (default 200,000)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one run may take (default 900)")
    parser.add_argument("--name", help="name of the results file; default = do not write one")
    options = parser.parse_args()

    systems = {
        f"{ranks} rank{'s' if ranks > 1 else ''}": system(
            options.experiment, ranks, options.actors, options.environments, options.set
        )
        for ranks in options.ranks
    }
    runs = run_rounds(systems, options)
    summary = summarise(runs)
    print(table(summary))
    for name, found in runs.items():
        waits = [run["shares"].get("waiting_for_ranks", 0.0) for run in found]
        summary[name]["waiting_for_ranks"] = waits
        print(f"{name:<16} waiting for ranks: {', '.join(f'{share:.1%}' for share in waits)}")
    if options.name:
        write_results("data_parallel", options, summary)


if __name__ == "__main__":
    main()
