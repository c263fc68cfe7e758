"""Where Gymnasium environments come from: a registered id, or a class or function named by its module.

Nothing here makes an environment before one of the returned functions is called; importing the module that holds it is
what a check before the start can do, and it shows the inner cause where the import fails.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from srl.api.errors import EnvironmentFault, MissingExtraError, PluginError, SRLError
from srl.api.importing import import_module, import_target, place_of
from srl.api.suggest import did_you_mean
from srl.environments.mujoco_warnings import log_mujoco_warnings
from srl.environments.options import worker_threads

NAMESPACE_MODULES = {"ALE": "ale_py", "srl": "srl.environments.tasks"}
INSTALL_COMMANDS = {
    "ale_py": 'pip install "srl-dataflow[atari]"',
    "envpool": 'pip install "srl-dataflow[envpool]"',
    "mujoco": 'pip install "srl-dataflow[mujoco]"',
    "Box2D": 'pip install "srl-dataflow[box2d]"',
    "cv2": 'pip install "srl-dataflow[images]"',
    "pygame": 'pip install "gymnasium[classic-control]"',
    "jax": 'pip install "gymnasium[jax]"',
}
ALE_VECTORISER = "ale_py.vector_env:AtariVectorEnv"
_OLD_GAME = re.compile(r"[A-Za-z]+-v[045]")
# What gymnasium.make takes itself; everything else goes to the environment.
MAKE_ARGUMENTS = ("max_episode_steps", "disable_env_checker", "render_mode")


@dataclass(frozen=True)
class SingleSource:
    """Makes single environments.

    Attributes:
        name: Name for messages.
        create: Makes one environment.
        frames_per_step: Emulator frames under one env step, as far as the registration tells; else 1.
    """

    name: str
    create: Callable[[], gymnasium.Env[Any, Any]]
    frames_per_step: int = 1


@dataclass(frozen=True)
class VectorSource:
    """Makes vector environments.

    Attributes:
        name: Name for messages.
        create: Makes a vector environment of that many.
        frames_per_step: Emulator frames under one env step, as far as the registration tells; else 1.
    """

    name: str
    create: Callable[[int], VectorEnv[Any, Any, Any]]
    frames_per_step: int = 1


@contextmanager
def making(name: str) -> Iterator[None]:
    """Turn what a constructor of an environment raises into an error that names the environment.

    Raises:
        EnvironmentFault: With the inner cause.
    """
    log_mujoco_warnings()  # what simulates is imported with the class, before the class is called
    try:
        yield
    except SRLError:
        raise
    except Exception as error:
        raise EnvironmentFault(
            f"the environment could not be made: {type(error).__name__}: {error}",
            where=name,
            hint=f"Raised at {place_of(error)}",
        ) from error


def from_id(identifier: str, kwargs: Mapping[str, Any], vectorization: str) -> SingleSource | VectorSource:
    """The environment registered under a Gymnasium id.

    Args:
        identifier: ``Name-v0``, ``namespace/Name-v0`` or ``module:Name-v0``.
        kwargs: Arguments of the environment.
        vectorization: ``auto`` (the native vector entry point where there is one that takes the arguments),
            ``vector_entry_point`` or ``sync``.

    Raises:
        SRLError: If the id is unknown, its module cannot be imported, or it has no such entry point; ``where`` is the
            option at fault.
    """
    name = _import_for(identifier)
    spec = gymnasium.registry.get(name)
    if spec is None:
        raise _unknown_id(name)
    native = spec.vector_entry_point is not None and not spec.additional_wrappers
    if vectorization == "vector_entry_point" and not native:
        raise SRLError(
            f"'{name}' has no native vector entry point",
            where="vectorization",
            value=vectorization,
            expected="auto or sync",
        )
    use_vector = native and vectorization != "sync"
    if use_vector and vectorization == "auto" and spec.entry_point is not None:
        use_vector = not _for_make_alone(_creator(spec, spec.vector_entry_point), kwargs)
    creator = _creator(spec, spec.vector_entry_point if use_vector else spec.entry_point)
    if use_vector:
        check_kwargs(creator, kwargs, own=("num_envs",))
        kwargs = _unclipped(spec, kwargs)
    else:
        check_kwargs(creator, kwargs, allowed=MAKE_ARGUMENTS)
    frames = kwargs.get("frameskip", spec.kwargs.get("frameskip", 1))
    frames = frames if isinstance(frames, int) else 1
    if use_vector:
        return VectorSource(
            name,
            lambda count: gymnasium.make_vec(name, count, vectorization_mode="vector_entry_point", **kwargs),
            frames,
        )
    # The passive checker runs at every step and only warns; the adapter checks what it needs.
    arguments = {"disable_env_checker": True, **kwargs}
    return SingleSource(name, lambda: gymnasium.make(name, **arguments), frames)


def _for_make_alone(vector: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is one of ``gymnasium.make``'s that the vector environment does not take."""
    taken = _parameters(vector)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        return False
    return any(name in MAKE_ARGUMENTS and name not in taken for name in kwargs)


def _unclipped(spec: EnvSpec, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """ale-py's vectoriser clips rewards unless told otherwise, and then nobody knows the returns.

    Raises:
        SRLError: It is told to clip them, or to end episodes at lost lives.
    """
    if spec.vector_entry_point != ALE_VECTORISER:
        return kwargs
    for name in ("reward_clipping", "episodic_life"):
        if kwargs.get(name):
            raise SRLError(
                "ale-py would report returns after that, not those of the game",
                where=f"kwargs.{name}",
                value=kwargs[name],
                expected="false",
                hint=f"The environment type atari does it and keeps the returns: {{type: atari, game: {spec.name}, "
                f"{name}: true}}.",
            )
    return {"reward_clipping": False, "num_threads": worker_threads(), **kwargs}


def from_entry(entry: str, kwargs: Mapping[str, Any], vectorization: str) -> SingleSource | VectorSource:
    """The environment class or function at ``package.module:Attr``.

    A class below ``VectorEnv``, or a function with a ``num_envs`` argument, is called with ``num_envs``; anything else
    makes single environments.

    Raises:
        SRLError: If it cannot be imported or is no environment; ``where`` is the option at fault.
    """
    made = import_named(import_target, entry, "entry")
    is_class = inspect.isclass(made)
    if not callable(made) or (is_class and not issubclass(made, (gymnasium.Env, VectorEnv))):
        raise SRLError(
            "the entry is neither an environment class nor a function that returns an environment",
            where="entry",
            value=entry,
            expected="a subclass of gymnasium.Env or gymnasium.vector.VectorEnv, or a function that returns one",
            hint="Environments of the old 'gym' package are not Gymnasium environments.",
        )
    is_vector = issubclass(made, VectorEnv) if is_class else "num_envs" in _parameters(made)
    if (vectorization == "sync" and is_vector) or (vectorization == "vector_entry_point" and not is_vector):
        kind = "a vector environment" if is_vector else "a single environment"
        raise SRLError(f"'{entry}' is {kind}", where="vectorization", value=vectorization, expected="auto")
    check_kwargs(made, kwargs, own=("num_envs",) if is_vector else ())
    arguments = dict(kwargs)
    if is_vector:
        return VectorSource(entry, lambda count: _typed(made(num_envs=count, **arguments), VectorEnv, entry))
    return SingleSource(entry, lambda: _typed(made(**arguments), gymnasium.Env, entry))


def import_named(action: Callable[[str, str], Any], name: str, where: str) -> Any:
    """Import a module or target that the experiment names.

    Args:
        action: :func:`srl.api.importing.import_module` or :func:`~srl.api.importing.import_target`.
        name: Its argument.
        where: The option that names it.

    Raises:
        PluginError: With the inner cause.
        MissingExtraError: Instead, where a package is missing whose install command is known.
    """
    try:
        return action(name, where)
    except PluginError as error:
        raise missing_extra(error, error.__cause__) or error from error.__cause__


def missing_extra(error: SRLError, cause: BaseException | None) -> MissingExtraError | None:
    """The same error with the command that installs what is missing, if that was the cause and the command is known."""
    for inner in (cause, getattr(cause, "__cause__", None)):
        missing = (getattr(inner, "name", None) or "").partition(".")[0]
        if missing in INSTALL_COMMANDS:
            return MissingExtraError(error.what, where=error.where, hint=f"Install it: {INSTALL_COMMANDS[missing]}")
    if isinstance(cause, gymnasium.error.DependencyNotInstalled):  # its message holds the command
        return MissingExtraError(error.what, where=error.where)
    return None


def _import_for(identifier: str) -> str:
    """Import what registers the id, and return it without its module."""
    module_name, separator, name = identifier.rpartition(":")
    if separator:
        import_named(import_module, module_name, "id")
    namespace = name.rpartition("/")[0]
    if name not in gymnasium.registry and namespace in NAMESPACE_MODULES:
        import_named(import_module, NAMESPACE_MODULES[namespace], "id")
    if not separator and name not in gymnasium.registry and _OLD_GAME.fullmatch(name):
        # ale-py registers Pong-v4 and PongNoFrameskip-v4 too, as the old Gym did.
        if importlib.util.find_spec("ale_py") is not None:
            import_named(import_module, "ale_py", "id")
    return name


def _unknown_id(name: str) -> SRLError:
    namespace = name.rpartition("/")[0]
    namespaces = {spec.namespace for spec in gymnasium.registry.values() if spec.namespace}
    if namespace and namespace not in namespaces:
        return SRLError(
            f"nothing is registered in the namespace '{namespace}'",
            where="id",
            value=name,
            expected=f"one of the namespaces {', '.join(sorted(namespaces))}, or none",
            hint="Name the module that registers it: 'module:Name-v0', or under 'modules'.",
        )
    versions = sorted(known for known in gymnasium.registry if known.rpartition("-v")[0] == name.rpartition("-v")[0])
    unversioned = sorted(known for known in gymnasium.registry if known.rpartition("-v")[0] == name)
    games = [known for known in (f"ALE/{name.rpartition('-v')[0]}-v5",) if known in gymnasium.registry]
    exact = games + (versions or unversioned)
    hint = f"Did you mean {', '.join(map(repr, exact))}?" if exact else did_you_mean(name, gymnasium.registry, "ids")
    return SRLError(
        "no environment is registered under this id",
        where="id",
        value=name,
        hint=f"{hint} If a module registers it, name that: 'module:Name-v0', or under 'modules'.",
    )


def _creator(spec: EnvSpec, entry_point: Any) -> Callable[..., Any]:
    if callable(entry_point):
        return entry_point  # type: ignore[no-any-return]
    if entry_point is None:
        raise SRLError(f"'{spec.id}' is registered without an entry point", where="id", value=spec.id)
    try:
        return gymnasium.envs.registration.load_env_creator(entry_point)
    except Exception as error:
        what = f"the environment behind '{spec.id}' cannot be imported: {type(error).__name__}: {error}"
        problem = SRLError(what, where="id", hint=f"Raised at {place_of(error)}")
        raise missing_extra(problem, error) or problem from error


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def check_kwargs(
    creator: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    where: str = "kwargs",
    own: tuple[str, ...] = (),
    allowed: tuple[str, ...] = (),
    skip: int = 0,
) -> None:
    """Unknown argument names are found before the start wherever the signature tells.

    Args:
        creator: Class or function.
        kwargs: The arguments that the experiment gives.
        where: Key path of the arguments.
        own: Arguments that SRL gives itself.
        allowed: Further arguments that are taken somewhere else.
        skip: Number of leading parameters that SRL fills.

    Raises:
        SRLError: For the first argument that does not exist or is not the experiment's to give.
    """
    parameters = dict(list(_parameters(creator).items())[skip:])
    for name in kwargs:
        if name in own:
            raise SRLError("SRL gives this argument itself", where=f"{where}.{name}")
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()) or not _parameters(creator):
        return
    names = [name for name in dict.fromkeys((*parameters, *allowed)) if name not in own]
    for name in kwargs:
        if name not in names:
            raise SRLError(
                "there is no such argument",
                where=f"{where}.{name}",
                expected=f"one of {', '.join(names)}" if names else "no arguments",
                hint=did_you_mean(name, names, "arguments"),
            )


def _typed(made: Any, kind: type[Any], entry: str) -> Any:
    if isinstance(made, kind):
        return made
    raise EnvironmentFault(
        "the entry did not return an environment of its kind",
        where=entry,
        value=f"{type(made).__module__}.{type(made).__qualname__}",
        expected=f"{kind.__module__}.{kind.__qualname__}",
    )
