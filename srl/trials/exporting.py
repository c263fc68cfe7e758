"""A trial's policy for other programs: ONNX and TorchScript, checked against the framework's own decisions.

Any algorithm's policy can be exported whose torch module (``PolicySpec.module``) has a method ``export_module()``. It
returns a module on the CPU with two attributes, ``input_names`` and ``output_names``, that is called with tensors in
the order of the first and returns a tuple of tensors in the order of the second; B rows each:

- inputs: ``observation`` (or every leaf of a nested observation, by its path) as the environment gives it; then
  ``action_mask bool[B, M]`` where the policy has one; then ``state float32[B, S]`` and ``episode_start bool[B]`` where
  it is recurrent;
- outputs: ``action`` (or ``action.PATH`` for every leaf of a nested one) as the environment takes it, deterministic;
  then ``state`` where it is recurrent, which is called ``next_state`` in what is written (names in ONNX are unique).
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import MissingExtraError, SRLError, UsageError
from srl.api.policy import ActingPolicy, PolicySpec
from srl.distributed.evaluate import SavedPolicy, open_policy
from srl.system.durable import disk_errors
from srl.system.workers.acting_check import build_acting
from srl.trials.export_check import NEXT_STATE, Batch, check_batches, expected_outputs, largest_difference

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], dict[str, NDArray[Any]]]

FORMATS = ("onnx", "torchscript")
TOLERANCE = 1e-5
"""Of every output, relative to its largest value where that is above 1."""
OPSET = 17
"""Of ONNX; what every runtime of the last years reads."""
DESCRIPTION = "policy.json"


class ExportError(SRLError):
    """An exported policy decides otherwise than the framework, or has no form in the format; nothing was written."""


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        directory: Where.
        files: Format to file.
        description: Content of ``policy.json`` beside them: names, shapes and dtypes of inputs and outputs.
    """

    directory: Path
    files: Mapping[str, Path]
    description: Mapping[str, Any]


def export_policy(
    trial: Path,
    directory: str | Path | None = None,
    *,
    formats: Sequence[str] = FORMATS,
    checkpoint: str | None = None,
    policy: str | None = None,
) -> Exported:
    """Write a saved version of a policy, deterministic, its normalisation and recurrent state included.

    Args:
        trial: The trial directory.
        directory: Where to; made if absent, files of an earlier export are replaced. ``None`` = ``export-VERSION`` in
            the trial directory.
        formats: Of :data:`FORMATS`.
        checkpoint: As for :func:`srl.distributed.evaluate.evaluate_trial`.
        policy: Policy name; ``None`` = the evaluators' policy, or the first one.

    Raises:
        UsageError: An unknown format, no checkpoint, or a policy that cannot be exported.
        MissingExtraError: ONNX is asked for and not installed.
        ExportError: The result decides otherwise than the framework; nothing is written.
        ResourceError: The files cannot be written.
    """
    if not formats or set(formats) - set(FORMATS):
        raise UsageError("unknown format", value=", ".join(formats), expected=" or ".join(FORMATS))
    if "onnx" in formats:
        _require_onnx()
    saved = open_policy(trial, checkpoint, policy)
    # Whatever precision the policy acts with in training, what is exported computes in float32.
    spec = replace(saved.spec, acting_dtype="float32")
    module = _module(saved, spec)
    target = Path(directory).expanduser() if directory else trial / f"export-{saved.checkpoint.version}"
    batches = _checked_names(module, spec)
    expected = [expected_outputs(spec, _acting(saved, spec), batch) for batch in batches]
    with disk_errors("cannot write the exported policy", target):
        target.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target, prefix=".tmp-"))
        try:
            names = {"onnx": "policy.onnx", "torchscript": "policy.pt"}
            differences = {}
            for name in formats:
                run = _written(name, module, batches[0], work / names[name])
                differences[name] = _compare(name, run, batches, expected)
            description = _describe(saved, spec, batches[0], expected[0], differences, names)
            (work / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
            for file in work.iterdir():
                file.replace(target / file.name)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Exported(target, {name: target / names[name] for name in formats}, description)


def _module(saved: SavedPolicy, spec: PolicySpec) -> torch.nn.Module:
    import torch

    from srl.system.workers.training import build_module

    policy = build_module(spec, saved.experiment.seed)
    make = getattr(policy, "export_module", None)
    if make is None:
        raise UsageError(
            "this policy cannot be exported",
            where=spec.module,
            expected="a module with a method export_module()",
            hint="srl/trials/exporting.py says what it returns.",
        )
    weights = saved.checkpoint.weights()
    # A tensor that has two names in the module has one among the weights.
    names = {name for name, _ in (*policy.named_parameters(), *policy.named_buffers())} & set(policy.state_dict())
    policy.load_state_dict({name: torch.from_numpy(weights[name]) for name in names}, strict=False)
    module: torch.nn.Module = make()
    return module.eval()


def _acting(saved: SavedPolicy, spec: PolicySpec) -> ActingPolicy:
    """The framework's own decisions: the same class that acts in trials."""
    acting = build_acting(spec)
    acting.load(saved.checkpoint.weights())
    return acting


def _checked_names(module: torch.nn.Module, spec: PolicySpec) -> list[Batch]:
    """Batches to check with; refuses a module whose inputs are others than the contract's."""
    batches = check_batches(spec)
    names = tuple(batches[0].inputs)
    given = tuple(getattr(module, "input_names", ()))
    if given != names:
        raise UsageError(
            "export_module() returned a module with other inputs", where=spec.module, value=given, expected=str(names)
        )
    return batches


def _tensors(inputs: Arrays) -> tuple[torch.Tensor, ...]:
    import torch

    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values())


def _write_torchscript(module: torch.nn.Module, batch: Batch, path: Path) -> Run:
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        # torch advises against TorchScript, and warns of every shape that is a number when traced; both are known: the
        # result is compared at other batch sizes.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", _tracer_warning())
        traced = torch.jit.trace(module, _tensors(batch.inputs), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, path)
        loaded = torch.jit.load(path)  # type: ignore[no-untyped-call]

    def run(inputs: Arrays) -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            outputs = loaded(*_tensors(inputs))
        return dict(zip(_output_names(module), (one.numpy() for one in outputs), strict=True))

    return run


def _write_onnx(module: torch.nn.Module, batch: Batch, path: Path) -> Run:
    import torch

    names = (*batch.inputs, *_output_names(module))
    with warnings.catch_warnings():
        # torch's other exporter needs onnxscript, takes thirty times as long and puts the weights into a second file.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", _tracer_warning())
        torch.onnx.export(
            module,
            _tensors(batch.inputs),
            path,
            input_names=[*batch.inputs],
            output_names=[*_output_names(module)],
            dynamic_axes={name: {0: "batch"} for name in names},
            opset_version=OPSET,
            dynamo=False,
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # What the graph never reads is no input of it any more (a state that is replaced everywhere, for example).
    read = {one.name for one in session.get_inputs()}

    def run(inputs: Arrays) -> dict[str, NDArray[Any]]:
        outputs = session.run(None, {name: array for name, array in inputs.items() if name in read})
        return dict(zip(_output_names(module), outputs, strict=True))

    return run


def _tracer_warning() -> type[Warning]:
    import torch

    kind: type[Warning] = torch.jit.TracerWarning  # type: ignore[attr-defined]
    return kind


_WRITERS: Mapping[str, Callable[[Any, Batch, Path], Run]] = {
    "onnx": _write_onnx,
    "torchscript": _write_torchscript,
}


def _written(name: str, module: torch.nn.Module, batch: Batch, path: Path) -> Run:
    try:
        return _WRITERS[name](module, batch, path)
    except OSError:
        raise
    except Exception as error:  # whatever torch raises where the format has no word for something
        first = str(error).strip().partition("\n")[0]
        raise ExportError(
            f"torch cannot write this policy as {name}: {type(error).__name__}: {first}",
            hint="" if name == "torchscript" else "Another format may do: --format torchscript.",
        ) from error


def _output_names(module: torch.nn.Module) -> tuple[str, ...]:
    names: tuple[str, ...] = tuple(module.output_names)  # type: ignore[arg-type]
    return tuple(NEXT_STATE if name == "state" else name for name in names)


def _compare(name: str, run: Run, batches: Sequence[Batch], expected: Sequence[Arrays]) -> float:
    """The largest difference; refused above the tolerance."""
    worst = 0.0
    for batch, wanted in zip(batches, expected, strict=True):
        got = run(batch.inputs)
        if set(got) != set(wanted):
            raise ExportError("other outputs than the policy's", value=sorted(got), expected=str(sorted(wanted)))
        for output, array in wanted.items():
            difference = largest_difference(got[output], array)
            if not difference <= TOLERANCE:
                raise ExportError(
                    f"the exported policy ({name}) decides otherwise than the framework; nothing was written",
                    where=output,
                    value=f"a difference of {difference:.3g} in a batch of {batch.size}",
                    expected=f"at most {TOLERANCE:g}",
                )
            worst = max(worst, difference)
    return worst


def _describe(
    saved: SavedPolicy,
    spec: PolicySpec,
    batch: Batch,
    outputs: Arrays,
    differences: Mapping[str, float],
    files: Mapping[str, str],
) -> dict[str, Any]:
    def entries(arrays: Arrays) -> list[dict[str, Any]]:
        return [
            {"name": name, "shape": ["batch", *array.shape[1:]], "dtype": array.dtype.name}
            for name, array in arrays.items()
        ]

    return {
        "policy": spec.name,
        "experiment": saved.experiment.name,
        "policy_version": saved.checkpoint.version,
        "env_steps": int(saved.checkpoint.counters.get("env_steps", 0)),
        "weights_sha256": saved.checkpoint.weights_sha256,
        "files": {name: files[name] for name in differences},
        "inputs": entries(batch.inputs),
        "outputs": entries(outputs),
        "observation_space": spec.observation.to_dict(),
        "action_space": spec.action.to_dict(),
        "recurrent": {
            "state_size": spec.state_size,
            "how": "feed next_state back as state; set episode_start where an episode begins",
        }
        if spec.state_size
        else None,
        "checked": {"tolerance": TOLERANCE, "largest_difference": dict(differences)},
    }


def _require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"exporting to ONNX needs {' and '.join(missing)}",
            hint='Install it: pip install "srl-dataflow[export]"; or export to TorchScript alone.',
        )
