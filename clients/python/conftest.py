"""What all tests have."""

import pytest

from stage import KINDS, Server


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
    return make()


@pytest.fixture
def server(place):
    return Server(place)
