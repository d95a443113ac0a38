"""What all tests have, and which of them run side by side."""

import os

import pytest

from stage import KINDS, LEASE, Server


@pytest.fixture
def place(request):
    return request.param


@pytest.fixture(params=KINDS)
def make(request, place):
    made = []

    def make(**options):
        made.append(KINDS[request.param](place, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def locks(make):
    return make(lease=4 * LEASE)  # it ends in no stall of a busy machine


@pytest.fixture
def server(place):
    return Server(place)


def where(item):
    """The servers that it stops or needs for itself; `rest` where there are none."""
    arguments = getattr(item, "callspec", None)
    arguments = arguments.params if arguments else {}
    case = arguments.get("case", {})
    place = case.get("at", arguments.get("place"))
    if place in ("cluster", "pair"):
        return place
    if stops := item.get_closest_marker("stops"):
        return stops.args[0]
    alone = {"freeze", "connections", "holds"} & {step["do"] for step in case.get("steps", ())}
    return "single" if alone else "rest"


def pytest_collection_modifyitems(config, items):
    """DLOCK_PART: what needs `single`, `pair` or `cluster` for itself; or the `rest`."""
    part = os.environ.get("DLOCK_PART")
    if part is None:
        return
    chosen = [one for one in items if where(one) == part]
    config.hook.pytest_deselected(items=[one for one in items if one not in chosen])
    items[:] = chosen
