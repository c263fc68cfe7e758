"""``srl-run``: argument parsing and printing; everything else is imported where it is used, so that it starts fast."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from srl import __version__
from srl.api.errors import SRLError, UsageError
from srl.api.experiment import Experiment
from srl.api.importing import is_target, refuse_while_importing
from srl.api.loading import (
    UnreadOptionWarning,
    bundled_experiments,
    experiment_from_mapping,
    load_experiment,
    resolved_yaml,
)
from srl.api.registry import BUILT_IN, REGISTRY, algorithm_plugin
from srl.api.yaml_text import parse_value

INTERRUPTED = 130

EPILOG = """\
other commands (srl-run COMMAND --help):
  check EXPERIMENT     validate, start nothing
  list                 bundled experiments, algorithms, environments
  schema               JSON Schema of experiment files
  evaluate TRIAL       score a trained policy

examples:
  srl-run cartpole_ppo
  srl-run cartpole_ppo stop.env_steps=100000 policies.main.algorithm.learning_rate=1e-3 --seed 3
  srl-run ./my_experiment.yaml --placement fused --show-graph
  srl-run --algorithm ppo --environment CartPole-v1

exit codes: 0 done, 1 the run failed, 2 bad experiment or usage, 130 interrupted (Ctrl-C), 143 terminated
"""

EXPERIMENT_HELP = "a bundled name (srl-run list), a YAML file, or a Python file with 'def experiment() -> Experiment'"
OVERRIDE_HELP = "value in YAML for one key of the experiment; null removes a policy, stream or worker group"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        argv: Arguments without the program's name; those of the process if ``None``.

    Returns:
        Exit code: 0 done, 1 the run failed, 2 bad experiment or usage, 130 interrupted, 143 terminated.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {"check": _check_parser, "list": _list_parser, "schema": _schema_parser, "evaluate": _evaluate_parser}
    build = commands.get(arguments[0]) if arguments else None
    parser = build() if build else _run_parser()
    try:
        options = parser.parse_intermixed_args(arguments[1:] if build else arguments)
    except SystemExit as end:  # argparse has printed help or the error
        return int(end.code or 0)
    return _guarded(options)


def _guarded(options: argparse.Namespace) -> int:
    action: Callable[[argparse.Namespace], int] = options.action
    try:
        refuse_while_importing("starts srl-run")
        return action(options)
    except SRLError as error:
        if getattr(options, "debug", False):
            traceback.print_exc()
        print(f"srl-run: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("srl-run: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: no second error at exit
        return 0


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="srl-run",
        description="Train as an experiment declares.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(action=_run)
    parser.add_argument("--version", action="version", version=f"srl {__version__}")
    _add_experiment(parser)
    parser.add_argument("--trial-dir", type=Path, metavar="DIR", help="new directory for results (default: trials/...)")
    parser.add_argument("--show-graph", action="store_true", help="print the resolved graph and start nothing")
    parser.add_argument("--debug", action="store_true", help="no time limits on waits; tracebacks with errors")
    parser.add_argument(
        "--screen",
        choices=("auto", "live", "plain", "off"),
        default="auto",
        help="live screen, plain lines or nothing (default: live in a terminal, else plain)",
    )
    return parser


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    """Everything that says which experiment, with which changes."""
    parser.add_argument("words", nargs="*", metavar="EXPERIMENT [key.path=value ...]", help=EXPERIMENT_HELP)
    parser.add_argument("--algorithm", metavar="NAME", help="in place of EXPERIMENT: this algorithm's own recipe ...")
    parser.add_argument(
        "--environment", metavar="ID", help="... for this environment: a Gymnasium id, or a mapping in YAML with 'type'"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="root of all randomness (default: as in the experiment)")
    parser.add_argument(
        "--transport",
        choices=("auto", "in_process", "shared_memory", "tcp"),
        help="how blocks move between workers (default: as in the experiment; auto = fastest that the placement has)",
    )
    parser.add_argument(
        "--placement",
        choices=("auto", "fused", "processes"),
        help="fused = one process and thread; processes = one per worker (default: as in the experiment)",
    )
    parser.add_argument(
        "--no-plugins", action="store_true", help="refuse Python experiments and every plugin that is not built in"
    )


def _check_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="srl-run check",
        description="Validate an experiment: keys, options, graph, spaces, memory. Makes one environment to read its "
        "spaces, in a process of its own; starts no worker.",
        epilog=f"key.path=value: {OVERRIDE_HELP}",
        allow_abbrev=False,
    )
    _add_experiment(parser)
    parser.add_argument("--resolved", action="store_true", help="print the experiment with every default as YAML")
    parser.set_defaults(action=_check)
    return parser


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="srl-run list", description="Bundled experiments and registered plugins.")
    parser.set_defaults(action=_list)
    return parser


def _schema_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="srl-run schema", description="JSON Schema of experiment files.")
    parser.set_defaults(action=_schema)
    return parser


def _evaluate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="srl-run evaluate", description="Score a trial's policy: deterministic actions, statistics read-only."
    )
    parser.add_argument("trial", type=Path, metavar="TRIAL", help="directory of the trial")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="number of episodes (default: 100)")
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="best, newest, or a checkpoint's name or version (default: the best, else the newest)",
    )
    parser.set_defaults(action=_evaluate)
    return parser


def _run(options: argparse.Namespace) -> int:
    experiment = _experiment(options)
    if options.show_graph:
        print(_graph_text(experiment))
        return 0
    from srl.distributed.controller import run_trial

    result = run_trial(experiment, trial_dir=options.trial_dir, screen=options.screen, debug=options.debug)
    return int(result.exit_code)


def _check(options: argparse.Namespace) -> int:
    experiment = _experiment(options)
    graph_text = _graph_text(experiment)
    print(resolved_yaml(experiment) if options.resolved else f"{graph_text}\n\n{experiment.name} is valid")
    return 0


def _list(_options: argparse.Namespace) -> int:
    print("experiments")
    for name, path in bundled_experiments().items():
        print(f"  {name:<20} {_summary(path)}")
    for kind in ("algorithm", "environment"):
        print(f"{kind}s")
        for name in REGISTRY.names(kind):
            print(f"  {name:<20} {REGISTRY.target(kind, name)}")
    return 0


def _schema(_options: argparse.Namespace) -> int:
    from srl.api.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    if options.episodes < 1:
        raise UsageError("nothing to evaluate", where="--episodes", value=options.episodes, expected="at least 1")
    from srl.distributed.evaluate import evaluate_trial

    for key, value in evaluate_trial(options.trial, options.episodes, options.checkpoint).items():
        if not isinstance(value, list):  # one number per episode is for programs
            print(f"{key}: {value}")
    return 0


def _graph_text(experiment: Experiment) -> str:
    from srl.distributed.drawing import describe
    from srl.distributed.graph import resolve
    from srl.distributed.probing import probe_environment

    return describe(resolve(experiment, probe_environment(experiment)))


def _experiment(options: argparse.Namespace) -> Experiment:
    """The experiment that the arguments name, with their changes; warnings go to standard error."""
    source, overrides = _words(options.words)
    for key in ("seed", "transport", "placement"):
        if getattr(options, key) is not None:
            overrides.append(f"{key}={getattr(options, key)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        experiment = _load(options, source, overrides)
    for warning in caught:
        if not issubclass(warning.category, UnreadOptionWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            continue
        print(f"srl-run: warning: {warning.message}", file=sys.stderr)
    return experiment


def _load(options: argparse.Namespace, source: str | None, overrides: list[str]) -> Experiment:
    allow_plugins = not options.no_plugins
    recipe_wanted = options.algorithm is not None or options.environment is not None
    if source is not None and not recipe_wanted:
        return load_experiment(source, overrides, allow_plugins=allow_plugins)
    if source is not None or options.algorithm is None or options.environment is None:
        raise UsageError(
            "which experiment?",
            value=source,
            expected="either EXPERIMENT, or both --algorithm and --environment",
            hint="See srl-run list and srl-run --help.",
        )
    if not allow_plugins and options.algorithm not in BUILT_IN["algorithm"]:
        raise UsageError(
            "--no-plugins admits built-in plugins only",
            where="--algorithm",
            value=options.algorithm,
            expected=" or ".join(BUILT_IN["algorithm"]),
        )
    plugin = algorithm_plugin(options.algorithm, "--algorithm")
    recipe = plugin.recipe(_environment(options.environment), len(os.sched_getaffinity(0)))
    for policy in recipe["policies"].values():
        # An algorithm that inherits its recipe inherits the name in it too; meant is the one that was asked for.
        if policy["algorithm"]["type"] == plugin.name:
            policy["algorithm"]["type"] = options.algorithm
    return experiment_from_mapping(
        recipe, overrides, source=f"recipe of {options.algorithm}", allow_plugins=allow_plugins
    )


def _words(words: list[str]) -> tuple[str | None, list[str]]:
    sources = [word for word in words if "=" not in word]
    if len(sources) > 1:
        raise UsageError(
            "more than one experiment is named", value=" ".join(sources), expected="one, or key.path=value"
        )
    return (sources[0] if sources else None), [word for word in words if "=" in word]


def _environment(text: str) -> dict[str, Any]:
    """The ``environment`` mapping of ``--environment``: a YAML mapping, a registered or importable type, or an id."""
    value = parse_value(text) if text.lstrip().startswith("{") else text
    if isinstance(value, dict):
        return value
    if text in REGISTRY.names("environment") or is_target(text):
        return {"type": text}
    return {"type": "gymnasium", "id": text}


def _summary(path: Path) -> str:
    """The first comment of an experiment file."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip('#" ') if first.startswith(("#", '"""')) else ""


if __name__ == "__main__":
    sys.exit(main())
