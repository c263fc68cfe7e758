import itertools

from srl.system.seeding import SEED_LIMIT, environment_seeds, generator, module_seed


def seeds(root=7, **changes):
    arguments = dict(kind="actor", worker=0, incarnation=0, ring_group=0, count=16)
    return environment_seeds(root, **{**arguments, **changes})


def test_seeds_are_reproducible_and_in_range():
    assert seeds() == seeds()
    assert all(0 <= seed < SEED_LIMIT for seed in seeds())


def test_every_worker_incarnation_ring_group_and_root_has_its_own():
    """Field case 35: no two environments of a trial start alike, and a restarted actor repeats nothing."""
    streams = [
        seeds(kind=kind, worker=worker, incarnation=incarnation, ring_group=ring_group)
        for kind, worker, incarnation, ring_group in itertools.product(
            ("actor", "evaluator"), range(3), range(2), range(2)
        )
    ]
    streams += [seeds(root=8), seeds(generation=1)]
    everything = [seed for stream in streams for seed in stream]
    assert len(set(everything)) == len(everything)


def test_seeds_of_one_ring_group_are_distinct_even_when_hashes_collide():
    many = seeds(count=200_000)  # expected number of collisions of plain hashes: 9
    assert len(set(many)) == len(many)


def test_seed_of_an_environment_does_not_depend_on_how_many_follow():
    assert seeds(count=4) == seeds(count=16)[:4]


def test_generators_and_module_seeds_follow_from_purpose_and_key():
    assert generator(1, "trainer/a", 0).integers(2**60) == generator(1, "trainer/a", 0).integers(2**60)
    numbers = {
        generator(*key).integers(2**60) for key in [(1, "trainer/a", 0), (1, "trainer/a", 1), (1, "trainer/b", 0)]
    }
    assert len(numbers) == 3
    assert module_seed(1, "a") == module_seed(1, "a")
    assert len({module_seed(1, "a"), module_seed(1, "b"), module_seed(2, "a")}) == 3
    assert 0 <= module_seed(1, "a") < 2**63
