"""Sets of attention entries: each against its definition entry by entry, and blocks of it against the whole."""

import pytest
import torch

import mechplateau_kernels as mk

POS = 11


def by_definition(inside, batch=1):
    """bool [batch, pos, pos] of `inside(sample, query, key)`."""
    rows = [[[bool(inside(b, i, j)) for j in range(POS)] for i in range(POS)] for b in range(batch)]
    return torch.tensor(rows)


def random_codes(seed, batch, largest):
    return torch.randint(-1, largest, (batch, POS), generator=torch.Generator().manual_seed(seed))


def equal(query, key):
    return query >= 0 and query == key


def kinds():
    a, b = random_codes(0, 2, 3), random_codes(1, 2, 3)
    shared = random_codes(2, 1, 2)[0]
    listed = torch.tensor([[i, (i * 3) % POS if (i * 3) % POS != i else -1, -1] for i in range(POS)])
    mask = torch.rand(2, POS, POS, generator=torch.Generator().manual_seed(3)) < 0.5
    by_listed = lambda _, i, j: j in [x for x in listed[i].tolist() if x >= 0]  # noqa: E731
    coded = lambda s, i, j: equal(a[s, i], b[s, j])  # noqa: E731
    return {
        "offsets": (mk.Offsets(1, 3), lambda _, i, j: 1 <= i - j <= 3),
        "keys after the query": (mk.Offsets(-2, 0), lambda _, i, j: -2 <= i - j <= 0),
        "all before": (mk.Offsets(1, None), lambda _, i, j: i - j >= 1),
        "first": (mk.First(2), lambda _, i, j: j < 2),
        "nothing": (mk.First(0), lambda _, i, j: False),
        "codes": (mk.Codes(a, b), coded),
        "codes of all samples": (mk.Codes(shared, shared), lambda _, i, j: equal(shared[i], shared[j])),
        "codes of one side": (mk.Codes(a, shared), lambda s, i, j: equal(a[s, i], shared[j])),
        "no codes": (mk.Codes(torch.full((POS,), -1), torch.full((POS,), -1)), lambda _, i, j: False),
        "listed": (mk.Listed(listed), by_listed),
        "entries": (mk.Entries(mask), lambda s, i, j: mask[s, i, j]),
        "offsets and first": (mk.Offsets(2, 6) & mk.First(3), lambda _, i, j: 2 <= i - j <= 6 and j < 3),
        "codes and offsets": (
            mk.Codes(a, b) & mk.Offsets(1, None),
            lambda s, i, j: coded(s, i, j) and i > j,
        ),
        "codes and codes": (
            mk.Codes(a, b) & mk.Codes(shared, shared),
            lambda s, i, j: coded(s, i, j) and equal(shared[i], shared[j]),
        ),
        "codes and listed": (
            mk.Listed(listed) & mk.Codes(a, b),
            lambda s, i, j: coded(s, i, j) and by_listed(s, i, j),
        ),
        "listed and listed": (
            mk.Listed(listed) & mk.Listed(listed[:, :1]),
            lambda s, i, j: by_listed(s, i, j) and i == j,
        ),
        "three": (
            mk.Codes(a, b) & mk.First(8) & mk.Offsets(0, 4),
            lambda s, i, j: coded(s, i, j) and j < 8 and 0 <= i - j <= 4,
        ),
        "entries and codes": (
            mk.Entries(mask) & mk.Codes(a, b),
            lambda s, i, j: mask[s, i, j] and coded(s, i, j),
        ),
    }


@pytest.mark.parametrize("listed_up_to", [32, 0], ids=["listed", "looked up"])
@pytest.mark.parametrize("name", kinds())
def test_a_set_is_what_its_definition_says(name, listed_up_to, monkeypatch):
    monkeypatch.setattr("mechplateau_kernels.attention.sets.LISTED_UP_TO", listed_up_to)
    chosen, inside = kinds()[name]
    want = by_definition(inside, chosen.batch)
    assert torch.equal(chosen.dense(POS), want)
    assert torch.equal(chosen.count(POS, causal=False), want.sum(-1))
    assert torch.equal(chosen.count(POS), want.tril().sum(-1))
    # In blocks, as the operations read it.
    start, end = 3, 9
    left, right = chosen.span(start, end, POS)
    assert not want[:, start:end, :left].any()
    assert not want[:, start:end, right:].any()
    if left < right:
        block = chosen.mask(start, end, left, right, torch.device("cpu"))
        inner = want[:, start:end, left:right]
        assert inner.all() if block is None else torch.equal(block.expand_as(inner), inner)
    listed = chosen.lists(start, end, torch.device("cpu"))
    if listed is not None:
        for sample in range(chosen.batch):
            for row, query in enumerate(range(start, end)):
                keys = listed.expand(chosen.batch, -1, -1)[sample, row].tolist()
                found = sorted(key for key in keys if 0 <= key < POS)
                assert found == want[sample, query].nonzero().flatten().tolist()
    elif listed_up_to:
        assert name in ("all before", "first", "nothing", "entries", "offsets and first", "entries and codes")


@pytest.mark.parametrize("seed", range(8))
def test_random_intersections_are_the_intersections_of_their_masks(seed):
    generator = torch.Generator().manual_seed(seed)
    several = list(kinds().values())
    chosen = [several[i][0] for i in torch.randint(0, len(several), (3,), generator=generator).tolist()]
    want = chosen[0].dense(POS) & chosen[1].dense(POS) & chosen[2].dense(POS)
    assert torch.equal((chosen[0] & chosen[1] & chosen[2]).dense(POS).expand_as(want), want)


def test_a_drawing():
    assert mk.Offsets(1, 1).explain(3) == "Offsets(1, 1): queries down, keys across\n  0 .\n  1 #.\n  2 .#."
    tokens = torch.tensor([[4, 4, 5], [5, 4, 5]])
    assert (
        mk.Codes(tokens, tokens).explain(sample=1)
        == "Codes: queries down, keys across\n  0 #\n  1 .#\n  2 #.#"
    )
    assert "  0 ##." in mk.First(2).explain(3, causal=False)


def test_on_another_device_a_set_is_the_same():
    chosen = mk.Codes(torch.arange(4), torch.arange(4)) & mk.Offsets(0, 2)
    moved = chosen.to("meta")
    assert {x.device.type for x in moved.tensors} == {"meta"}
    assert (moved.low, moved.high, moved.length) == (0, 2, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mk.Offsets(2, 1), "low <= high"),
        (lambda: mk.Offsets(1.0, 2), "expected an int"),
        (lambda: mk.First(-1), "n >= 0"),
        (lambda: mk.Codes(torch.zeros(3), torch.zeros(3)), "expected integers"),
        (lambda: mk.Codes([1], [1]), "expected an integer tensor"),
        (lambda: mk.Codes(torch.zeros(3).long(), torch.zeros(4).long()), "of the same positions"),
        (lambda: mk.Codes(torch.zeros(2, 3).long(), torch.zeros(3, 3).long()), "of the same positions"),
        (lambda: mk.Listed(torch.tensor([[0], [2]])), "positions from 0 to 1"),
        (lambda: mk.Listed(torch.tensor([[0, 0], [1, -1]])), "once in a query's list"),
        (lambda: mk.Entries(torch.zeros(3, 3)), "expected bool"),
        (lambda: mk.Entries(torch.zeros(3, 4).bool()), "expected bool"),
        (lambda: mk.Listed(torch.tensor([[0]])) & mk.Entries(torch.eye(2).bool()), "of one length"),
        (lambda: mk.First(1).explain(65), "up to 64 positions"),
        (lambda: mk.First(1).explain(4, sample=1), "a sample below 1"),
        (lambda: mk.Listed(torch.tensor([[0]])).count(2), "made for 1 positions"),
    ],
)
def test_what_is_no_set_is_refused_in_one_line(make, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
