"""A node's connections: what ends with one, what one hears, and what is left of one. Nothing else ends with it."""

import concurrent.futures
import itertools
import threading

import pytest
import redis

import dlock_redis as dlock
from dlock_redis import _errors, _link, _threads
from dlock_redis._request import now
from stage import PATIENCE, Proxy, Tasks, addresses, command, until
from test_dlock import alone, in_cluster
from test_faults import LATE, raises, user  # noqa: F401

NEVER = 600.0


@pytest.fixture
def subscribers(monkeypatch):
    """All that were made."""
    made, begin = [], _link.Subscriber.__init__

    def noted(self, *how, **more):
        made.append(self)
        begin(self, *how, **more)

    monkeypatch.setattr(_link.Subscriber, "__init__", noted)
    return made


def path_to(make, **options):
    path = command("path {}:{}".format(*addresses("DLOCK_SINGLE")[0]))
    host, port = path.split(":")
    return path, make(host=host, port=int(port), **options)


def run(locks, work):
    return locks.run(work) if isinstance(locks, Tasks) else _threads.run(work)


def inside(locks, work, *arguments):
    """Where its connections are read."""
    async def call():
        return work(*arguments)

    return run(locks, call())


def only_node(locks):
    [node] = locks.locks._core.nodes.values()
    return node


@alone
def test_what_else_was_on_it_is_tied_anew_at_once(server, make):
    path, locks = path_to(make, lease=NEVER, hang_timeout=NEVER)
    locks.locks._core.settings.interval = NEVER
    hold = locks.lock(server.key)
    node = only_node(locks)
    until(lambda: node.link.kept, "the keeper has been there, and sleeps")
    command(f"cut {path}")
    locks.lock(f"{server.key}:other").release()  # threads hear of the end when they ask
    until(lambda: getattr(hold, "hold", hold)._renewal.link is node.link and node.link.error is None, "it is tied anew")
    hold.release()


@alone
def test_who_hangs_up_is_not_asked_all_the_time(server, make):
    asked = []
    with Proxy(addresses("DLOCK_SINGLE")[0], lambda: asked.append(1)) as path:
        locks = make(host=path.address[0], port=path.address[1], lease=NEVER, hang_timeout=NEVER)
        hold = locks.lock(server.key)
        node = only_node(locks)
        post = type(node.link).post

        def hangs_up(link, words, *how):
            if words[0] == "DLOCK.KEEP":
                link.die(redis.ConnectionError("it hangs up"))
            return post(link, words, *how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(node.link), "post", hangs_up)
            until(lambda: len(asked) > 3, "it connects again")
            began = len(asked)
            threading.Event().wait(2.0)
            assert len(asked) - began <= 40
    assert not hold.lost.is_set()
    server.ask("DLOCK.FORCERELEASE", server.key)


@in_cluster
def test_readonly_ends_no_link_of_another_node(server, make):
    locks = make()
    core = locks.locks._core
    numbers = itertools.count()

    def hold():
        return locks.lock(f"{{{next(numbers)}{server.key[1:-5]}}}lock", ephemeral=True)

    def connected():
        return {node.name: node.link for node in core.nodes.values() if node.link is not None}

    holds = [hold() for _ in range(20)]
    while len(connected()) < 3:  # the slots of names that differ in a digit may all be of two nodes
        holds.append(hold())
    links, key = connected(), holds[0].key
    words = ("EVAL", "return redis.error_reply('READONLY it is a replica')", 1, key)

    async def ask():
        try:
            await core.call(key, words, now() + PATIENCE)
        except redis.exceptions.ReadOnlyError:
            await core.refresh_routes(1.0)

    run(locks, ask())
    name = core.route(key).name
    assert [one for one in links if links[one].error] == [name]
    assert not [one.key for one in holds if one.lost.is_set() and core.route(one.key).name != name]


@alone
def test_an_ear_that_was_opened_before_the_link_is_not_believed(server, make, subscribers):
    with Proxy(addresses("DLOCK_SINGLE")[0]) as path:
        locks = make(host=path.address[0], port=path.address[1])
        server.hold()
        path.freeze("SUBSCRIBE")
        wait = locks.start(server.key)
        until(path.is_frozen, "it subscribes")
        node, core = only_node(locks), locks.locks._core
        old = node.link

        async def replace():
            await core._replace(node, old)

        run(locks, replace())
        path.thaw()
        server.await_queued(1)
        server.hand_over()
        wait.result(PATIENCE).release()
        assert subscribers[0].error is not None


@alone
def test_a_refused_connect_of_the_ear_is_no_lack_of_the_channel(server, make, monkeypatch):
    locks = make()
    locks.lock(server.key).release()
    core, node = locks.locks._core, only_node(locks)
    refusal = redis.exceptions.ResponseError("MASTERDOWN for a moment")
    with monkeypatch.context() as patch:
        if isinstance(locks, Tasks):
            async def refused(node):
                raise refusal

            patch.setattr(core, "connect", refused)
        else:
            def refused(*_):
                raise refusal

            patch.setattr(core, "connect", refused)
        server.hold()
        raises(redis.RedisError, locks.lock, server.key, 0.5)
    assert not node.subscribe_denied
    wait = locks.start(server.key)
    server.await_queued(1)
    server.hand_over()
    wait.result(PATIENCE).release()
    assert node.subscriber is not None and node.subscriber.error is None


@alone
def test_the_lack_of_the_channel_is_told_once(server, make, user, caplog):  # noqa: F811
    locks = make(**user("-subscribe"))
    server.hold()
    waits = [locks.start(server.key) for _ in range(5)]
    server.await_tickets(5)
    server.hand_over()
    for wait in concurrent.futures.as_completed(waits, PATIENCE):
        wait.result(PATIENCE).release()
    assert caplog.text.count("messages cannot be heard") == 1


@alone
def test_what_others_publish_is_ignored(server, make, subscribers):
    locks = make()
    server.hold()
    wait = locks.start(server.key)
    server.await_queued(1)
    channel = locks.locks._core.channel
    for words in ("", "granted", "granted x y", "granted 1 3:a", "granted 1 x:y 1:z 1", b"\xff\xfe 1 1:a 1:b \xff"):
        server.ask("PUBLISH", channel, words)
    server.hand_over()
    wait.result(PATIENCE).release()
    assert len(subscribers) == 1 and subscribers[0].error is None


@alone
def test_a_link_that_is_replaced_twice_leaves_no_connection(server, make, monkeypatch):
    locks = make()
    hold = locks.lock(server.key)
    core, node = locks.locks._core, only_node(locks)
    old, open_, opened = node.link, core.open, []

    async def slow(*how):
        link = await open_(*how)
        opened.append(link)
        if len(opened) == 1:  # meanwhile the old one dies, and somebody asks
            old.die(redis.ConnectionError("cut"))
            await core.link(node, now() + PATIENCE)
        return link

    async def replace():
        await core._replace(node, old)

    monkeypatch.setattr(core, "open", slow)
    run(locks, replace())
    until(lambda: [one for one in opened if one.error is None] == [node.link], "there is one")
    hold.release()


def test_moved_without_a_host_is_the_host_that_answered():
    error = _errors.from_server("MOVED 123 :6381")
    core = _threads.ThreadCore(redis.Redis(), dlock.Locks(redis.Redis())._core.settings)
    assert core.redirected(error, "a", core.node("10.0.0.1:6380")).name == "10.0.0.1:6381"
    assert core.redirected(_errors.from_server("ASK 123 ::1:6381"), "a", core.node("10.0.0.1:6380")).name == "::1:6381"
