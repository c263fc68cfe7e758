"""Checkpoints: what comes back equals what went in; damaged sets are skipped and named; nothing bad is saved."""

import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from srl.api.errors import NonFiniteError
from srl.system.checkpoint import (
    CheckpointError,
    list_checkpoints,
    load_checkpoint,
    newest_complete,
    prune,
    save_checkpoint,
)
from srl.system.parameters import weights_sha256
from srl.system.structure import StructureError, flatten, unflatten

WEIGHTS = {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "scale": np.array(2.0)}


def save(root, version, value=None, **state):
    weights = WEIGHTS if value is None else {"w": np.full(3, value, np.float32)}
    return save_checkpoint(root, version=version, weights=weights, state=state, counters={"env_steps": 10 * version})


def test_weights_state_and_counters_come_back_together(tmp_path):
    generator = np.random.default_rng(7)
    state = {
        "adam": {"m": np.ones((2, 3), np.float32), "step": np.array(12, np.int64), "betas": (0.9, 0.999)},
        "generator": generator.bit_generator.state,
        "flags": [True, None, "text", 1.5, -3],
    }
    path = save(tmp_path, 42, **state)
    found = newest_complete(tmp_path)
    assert found == load_checkpoint(path)
    assert (found.version, found.counters) == (42, {"env_steps": 420})
    assert found.weights_sha256 == weights_sha256(found.weights()) == weights_sha256(WEIGHTS)
    restored = found.state()
    assert restored["flags"] == state["flags"]
    assert restored["adam"]["betas"] == (0.9, 0.999)
    assert restored["adam"]["step"].dtype == np.int64
    other = np.random.default_rng()
    other.bit_generator.state = restored["generator"]
    assert other.random(4).tolist() == generator.random(4).tolist()


def test_files_are_read_by_the_safetensors_library_and_strides_do_not_matter(tmp_path):
    weights = {
        "t": np.arange(12.0).reshape(3, 4).T,
        "big": np.arange(3, dtype=">i4"),
        "none": np.zeros((0, 2), np.uint8),
    }
    path = save_checkpoint(tmp_path, version=0, weights=weights, state={}, counters={})
    loaded = load_file(path / "weights.safetensors")
    for name, array in weights.items():
        np.testing.assert_array_equal(loaded[name], array)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
keys = st.text(max_size=4) | st.integers() | st.just("$array")
nested = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner)
)


@given(nested)
def test_any_nesting_of_plain_values_survives_json(value):
    structure, arrays = flatten(value)
    assert unflatten(json.loads(json.dumps(structure, allow_nan=False)), arrays) == value


def test_nan_in_state_is_kept_and_numpy_scalars_keep_their_dtype():
    structure, arrays = flatten({"best": float("nan"), "small": np.float16(0.1)})
    restored = unflatten(json.loads(json.dumps(structure, allow_nan=False)), arrays)
    assert np.isnan(restored["best"])
    assert restored["small"].dtype == np.float16


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), np.array(["a"]), b"x", 1j])
def test_what_cannot_be_saved_is_named_by_its_path(tmp_path, value):
    with pytest.raises(StructureError) as caught:
        save(tmp_path, 1, optimizer={"groups": [0, {"bad": value}]})
    assert caught.value.where == "state.optimizer.groups[1].bad"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_and_the_last_good_set_stays(tmp_path, bad):
    save(tmp_path, 1)
    weights = {**WEIGHTS, "layer.weight": np.array([[0, 1, 2], [3, bad, bad]], np.float32)}
    with pytest.raises(NonFiniteError) as caught:
        save_checkpoint(tmp_path, version=2, weights=weights, state={}, counters={})
    assert caught.value.where == "layer.weight[1, 1]"
    assert [path.name for path in tmp_path.iterdir()] == ["version-000000001"]


def damage_byte(path):
    data = bytearray((path / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "weights.safetensors").write_bytes(data)


DAMAGES = {
    "a flipped bit": damage_byte,
    "a truncated state": lambda path: (path / "state.safetensors").write_bytes(b""),
    "a missing file": lambda path: (path / "state.json").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "half a manifest": lambda path: (path / "manifest.json").write_text('{"format": 1, "ver'),
    "a list for a manifest": lambda path: (path / "manifest.json").write_text("[]"),
    "another format": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace('"format": 1', '"format": 99')
    ),
    "files outside the set": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace("state.json", "../../etc/passwd")
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_set_is_skipped_and_named(tmp_path, caplog, damage):
    save(tmp_path, 7, 1.0)
    damage(save(tmp_path, 8, 2.0))
    with caplog.at_level(logging.WARNING):
        found = newest_complete(tmp_path)
    assert found is not None
    assert found.version == 7
    assert "version-000000008" in caplog.text
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "version-000000008")


def test_no_set_at_all(tmp_path):
    assert newest_complete(tmp_path / "absent") is None
    assert newest_complete(tmp_path) is None


def test_newest_is_by_number_not_by_text(tmp_path):
    for version in (999_999_999, 1_000_000_000, 5):
        save(tmp_path, version)
    assert newest_complete(tmp_path).version == 1_000_000_000


def test_the_same_version_again(tmp_path):
    first = save(tmp_path, 3, 1.0)
    assert save(tmp_path, 3, 1.0) == first
    second = save(tmp_path, 3, 2.0)
    assert second != first
    assert newest_complete(tmp_path).path == second
    assert newest_complete(tmp_path).weights()["w"][0] == 2.0


def test_prune_keeps_the_newest_complete_sets_and_pinned_ones(tmp_path):
    for version in range(1, 7):
        save(tmp_path, version)
    (tmp_path / "version-000000006" / "manifest.json").unlink()
    removed = prune(tmp_path, keep=2, pinned={1})
    assert [path.name for path in removed] == ["version-000000003", "version-000000002"]
    left = [int(path.name[-1]) for path in list_checkpoints(tmp_path)]
    assert left == [1, 4, 5, 6]
    assert newest_complete(tmp_path).version == 5
    assert len(list(tmp_path.iterdir())) == 4


def test_leftovers_of_a_killed_writer_are_never_read_and_go_with_the_next_save(tmp_path, caplog):
    path = save(tmp_path, 1)
    path.rename(tmp_path / ".tmp-version-000000002-77")
    assert newest_complete(tmp_path) is None
    save(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["version-000000003"]
    assert caplog.text == ""
