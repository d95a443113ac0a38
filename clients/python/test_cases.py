"""Runs the cases that all languages have (../cases), for threads and for asyncio."""

import concurrent.futures
import contextlib
import gc
import json
import logging
import os
import random
import threading
import time
from pathlib import Path

import pytest
import redis

import dlock_redis as dlock
from stage import KINDS, PATIENCE, Server, addresses, command, control, error_of, in_child, primary_of_the_pair, until

HERE = Path(__file__).parent
# What these cases of all languages look for is gone with the connection of our own.
GONE = {
    "no_right_to_ping": "nothing is pinged; and a session has no EPHEMERAL holds",
    "an_ephemeral_hold_over_a_failover_elsewhere": "a session has no EPHEMERAL holds",
    "an_ephemeral_hold_ends_with_its_connection": "a session has no EPHEMERAL holds",
    "a_refused_renewal_is_the_reason": "the session renews; sessions.json has a refused SESSION",
    "no_right_to_renew": "a grant after a wait is told by its row, and is not confirmed by RENEW",
}
CASES = [
    case
    for file in ("cases.json", "sessions.json")
    for case in json.loads((HERE / "../cases" / file).read_text())
    if case["name"] not in GONE
]
# A busy machine is late by itself. The cases look for delays longer than this.
LATE = float(os.environ.get("DLOCK_LATE", "4"))


def replica_of_the_pair():
    return next(one for one in addresses("DLOCK_PAIR") if one != primary_of_the_pair())


OPTIONS = ("owner", "actor", "limit", "permits", "shared", "lease", "max_hold")


def options_of(step):
    """The old word of the cases is `owner`."""
    return {"actor" if name == "owner" else name: value for name, value in step.items()}


class Case:
    """What a case has made so far. Each step is a method."""

    def __init__(self, kind, case, log):
        self.kind, self.log = kind, log
        self.place = case.get("at", "single")
        self.address = "{}:{}".format(*addresses("DLOCK_SINGLE")[0])
        self.server = Server(self.place)
        self.paths, self.clients, self.holds, self.starts, self.marks = {}, {}, {}, {}, {}
        self.frozen, self.users, self.spread, self.settings = [], [], {}, []

    def run(self, steps):
        for step in steps:
            arguments = {"name" if name == "as" else name: value for name, value in step.items() if name != "do"}
            getattr(self, "do_" + step["do"])(**arguments)

    def finish(self):
        for address in self.frozen:
            control(f"thaw {address}")
        for path in self.paths.values():
            control(f"close {path}")
        for client in self.clients.values():
            client.close()
        for user in self.users:
            self.server.ask("ACL", "DELUSER", user)
        for name, value in reversed(self.settings):
            self.server.ask("CONFIG", "SET", name, value)

    def named(self, key):
        return self.spread.get(key) or f"{self.server.key}:{key}"

    # What is done to the servers and on the way to them.

    def do_path(self, name, to="single"):
        of_pair = {"replica": replica_of_the_pair, "primary": primary_of_the_pair}
        target = of_pair[to]() if to in of_pair else addresses(f"DLOCK_{to.upper()}")[0]
        target = "{}:{}".format(*target)
        self.paths[name] = command(f"path {target}")

    def do_close(self, path):
        control(f"close {self.paths[path]}")

    def do_silence(self, path):
        control(f"silence {self.paths[path]}")

    def do_strand(self, path):
        control(f"strand {self.paths[path]}")

    def do_sound(self, path):
        control(f"sound {self.paths[path]}")

    def do_cut(self, path):
        control(f"cut {self.paths[path]}")

    def do_delay(self, path, ms):
        control(f"delay {self.paths[path]} {ms}")

    def do_freeze(self, key="lock", replica=False):
        if replica:
            host, port = replica_of_the_pair()
        else:
            kwargs = self.server.node(self.named(key)).connection_pool.connection_kwargs
            host, port = kwargs["host"], kwargs["port"]
        self.frozen.append(f"{host}:{port}")
        control(f"freeze {self.frozen[-1]}")

    def do_thaw(self):
        control(f"thaw {self.frozen.pop()}")

    def do_commands(self, path, at_most=None):
        """How many commands came this way since the last look."""
        seen = int(command(f"commands {self.paths[path]}"))
        assert at_most is None or seen - self.marks["commands"] <= at_most
        self.marks["commands"] = seen

    def do_settings(self, **settings):
        """Of the primary, until the case ends: in this order, and taken back in the other."""
        for name, value in settings.items():
            self.settings.append((name, self.server.client.config_get(name)[name]))
            self.server.ask("CONFIG", "SET", name, value)

    def do_fault(self, what, key="lock"):
        self.server.control(what if what == "switch" else f"{what} {self.named(key)}")

    def word(self, word):
        """What stands for something of this case in a plain command."""
        if word == "OWNER":  # of the first in the queue
            return self.server.queue(self.named("lock"))[0]
        if word == "USER":
            return self.users[-1]
        if word == "SESSION":  # of the lock's holder
            return self.server.info(self.named("lock"))["holders"][0]["in"]
        return {"KEY": self.named("lock"), "DATA": self.named("data")}.get(word, word)

    def do_ask(self, words, replies=None):
        reply = self.server.ask(*map(self.word, words))
        assert replies is None or reply.decode() == replies

    def do_other(self, key="lock", shared=False):
        self.server.hold("other", self.named(key), *["SHARED"] * shared)

    def do_hand_over(self, key="lock"):
        self.server.hand_over("other", self.named(key))

    def do_user(self, rule, **how):
        name = self.server.key.strip("{}") + str(len(self.users))
        self.server.ask("ACL", "SETUSER", name, "on", ">word", "~*", "&*", "+@all", rule)
        self.users.append(name)
        self.do_client(user=name, password="word", **how)

    # What the server shows.

    def do_queued(self, count, key="lock", absent=False):
        if absent:  # a client without messages asks again and again: its ticket is there, and it is not
            self.server.await_tickets(count, self.named(key))
        else:
            self.server.await_queued(count, self.named(key))

    def do_free(self, key="lock"):
        self.server.await_gone(self.named(key))

    def do_outlasts(self, ms, key="lock"):
        """The hold is so old: what was not kept has ended."""
        key = self.named(key)

        def old():
            holders = self.server.info(key)["holders"]
            assert holders, f"{key} is not held any more"
            return holders[0]["held-ms"] > ms

        until(old, f"{key} is held for {ms} ms")

    def do_renewed(self, key="lock"):
        """It is in a session: the server renews it."""
        def tied():
            holders = self.server.info(self.named(key))["holders"]
            return holders and holders[0]["in"]

        until(tied, f"{key} is renewed")

    def do_unkept(self, key="lock"):
        """It is held, and its session is not alive."""
        until(lambda: not self.server.info(self.named(key))["holders"][0]["alive"], f"{key} is kept by nobody")

    def do_overflow(self, key="lock"):
        """More happens in the session of the lock's holder than a server remembers."""
        session, one = self.word("SESSION"), self.named("overflow")
        with self.server.client.pipeline(transaction=False) as pipe:
            for i in range(5100):
                pipe.execute_command("DLOCK.ACQUIRE", one, f"overflow/{i}", 60000, "IN", session)
                pipe.execute_command("DEL", one)
            pipe.execute()

    def do_connections(self, name=None, same=None):
        """Those of the client to the server, and the threads of this process."""
        count = len([one for one in self.server.client.client_list() if one.get("cmd", "").startswith("dlock")])
        seen = count, threading.active_count()
        if name:
            self.marks[name] = seen
        else:
            before = self.marks[same]
            # The library's pool has a connection for each worker that asks at once, and one for the loop.
            connections = max(before[0], self.marks["workers"] + 1)
            assert seen[0] <= connections and seen[1] <= before[1] + 1, (before, seen)

    # What the client does.

    def do_client(self, name="client", path=None, lease=10.0, auto=60.0, claim=2.0, user=None, password=None):
        options = {"username": user, "password": password} if user else {}
        if path:
            host, port = self.paths[path].split(":")
            options |= {"host": host, "port": int(port)}
        place = "single" if path else self.place
        self.clients[name] = KINDS[self.kind](place, lease=lease, hang_timeout=auto, **options)

    def judge(self, gives, work, name="hold", text="", cause=None, within=None, at_once=False):
        if at_once:  # a busy machine is late by itself: one of twenty is enough
            assert any(self._takes(work) < 0.25 for _ in range(20))
        began = time.monotonic()
        try:
            hold = work()
            got = "none" if hold is None else "hold"
            if hold is not None:
                self.holds[name] = hold if isinstance(hold, list) else [hold]
        except dlock.LockTimeout as error:
            got = "none" if error.taken else "timeout"
            assert text in str(error) and (not cause or error.__cause__ is not None)
        except dlock.NotHeld:
            got = "not held"
        except (dlock.NoAck, dlock.Fenced, dlock.Replaced, dlock.Deadlock) as error:
            got = {"NoAck": "unconfirmed"}.get(type(error).__name__, type(error).__name__.lower())
        except (redis.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
            final = (
                redis.exceptions.AuthenticationError,
                redis.exceptions.ResponseError,
                redis.exceptions.BusyLoadingError,
                dlock.Quarantine,
            )
            got = "refusal" if isinstance(error, final) else "failure"
            assert text in str(error)
        assert got == gives
        assert within is None or time.monotonic() - began < within + LATE

    def _takes(self, work):
        began = time.monotonic()
        with contextlib.suppress(redis.RedisError):
            work()
        return time.monotonic() - began

    def do_lock(self, gives, client="client", key="lock", name="hold", timeout=PATIENCE, slots=False, **how):
        if slots:  # a key of another node for each
            taken = {self.server.client.get_node_from_key(one).name for one in self.spread.values()}
            while key not in self.spread:
                one = f"{{{random.getrandbits(48):x}}}lock"
                if self.server.client.get_node_from_key(one).name not in taken:
                    self.spread[key] = one
        locks = self.clients[client]
        options = options_of({one: how.pop(one) for one in list(how) if one in OPTIONS})
        self.judge(gives, lambda: locks.try_lock(self.named(key), timeout, **options), name, **how)

    def do_many(self, keys, gives, client="client", name="hold", timeout=PATIENCE, **how):
        locks = self.clients[client]
        self.judge(gives, lambda: locks.all_of([self.named(key) for key in keys], timeout), name, **how)

    def do_start(self, name, client="client", key="lock", timeout=PATIENCE, keys=(), **options):
        if keys:
            self.starts[name] = self.clients[client].start_all([self.named(one) for one in keys], timeout)
            return
        self.starts[name] = self.clients[client].start(self.named(key), timeout, **options_of(options))

    def do_joined(self, start, gives, **how):
        self.judge(gives, lambda: self.starts[start].result(PATIENCE), **how)

    def do_release(self, hold="hold", gives=None, text="", after=None):
        for one in self.holds[hold]:
            if after is not None:
                one.release_after(after)
            elif gives is None:
                one.release()
            else:
                self.judge(gives, one.release, text=text)

    def do_block(self, key="lock", client="client"):
        """The work releases its lock. To do so again is an error, and to leave the block is none."""
        self.clients[client].releases_in_block(self.named(key))

    def do_fork(self, hold, key, client="client"):
        """In a child the parent's hold is lost, and cannot be released; the child can take locks of its own."""
        [one], locks = self.holds[hold], self.clients[client]
        key = self.named(key)
        seen = in_child(lambda: [one.lost.is_set(), error_of(locks.release_in_child, one), locks.in_child(key)])
        assert seen == [True, "DLockError", locks.child_takes]

    def do_early(self, client="client"):
        """Work that returns before it is done is refused, when it is given or when it has returned."""
        locks = self.clients[client]
        for work in locks.works_that_return_early():
            with pytest.raises(TypeError, match="before the work"):
                locks.locked(self.named("lock"), work)

    def do_guard(self, hold, words, gives=None):
        for one in self.holds[hold]:
            if gives is None:
                one.guard(*map(self.word, words))
            else:
                self.judge(gives, lambda: one.guard(*map(self.word, words)))

    def do_holds(self, count, name, client="client"):
        # In hundreds: a lease counts from the request, and on a busy machine this process is seconds late for thousands
        # of replies.
        self.holds[name] = []
        for first in range(0, count, 100):
            hundred = range(first, min(first + 100, count))
            waits = [self.clients[client].start(self.named(str(i)), None) for i in hundred]
            self.holds[name] += [wait.result(PATIENCE) for wait in waits]

    def do_lost(self, hold, within, text=""):
        for one in self.holds[hold]:
            assert one.lost.wait(within + LATE), "it is told"
            assert text in getattr(one, "hold", one).reason

    def do_kept(self, hold):
        assert not [one.key for one in self.holds[hold] if one.lost.is_set()]

    def do_forget(self, hold, key="lock"):
        for one in self.holds.pop(hold):
            one.forget() if hasattr(one, "forget") else None
        del one
        gc.collect()

    def do_end(self, client="client"):
        self.clients[client].end()

    def do_cycles(self, workers, count, client="client"):
        done = threading.Barrier(workers + 1)
        self.marks["workers"] = workers

        def work():
            for _ in range(count):
                self.clients[client].lock(self.named("lock")).release()
            done.wait(PATIENCE)

        for _ in range(workers):
            threading.Thread(target=work, daemon=True).start()
        done.wait(PATIENCE)

    def do_objects(self, count, client="client"):
        for i in range(count):
            self.clients[client].lock(self.named(str(i))).release()

    def do_logged(self, text, at_least, at_most=None):
        def seen():
            return sum(text in record.getMessage() for record in self.log.records)

        until(lambda: seen() >= at_least, f"it says {text!r}")
        assert at_most is None or seen() <= at_most

    def do_bad(self, names, key="lock", timeout=0, **options):
        timeout = float(timeout) if timeout == "NaN" else timeout
        with pytest.raises((TypeError, ValueError), match=names):
            self.clients["client"].try_lock(key and self.named(key), timeout, **options)


# Steps that affect more than the case's own client, or that need this process for themselves.
ALONE = {"freeze", "fault", "settings", "connections", "logged", "holds", "fork", "forget"}


def runs():
    """Both kinds at once, where neither feels the other: cases mostly wait."""
    for case in CASES:
        alone = ALONE & {step["do"] for step in case["steps"]}
        for kinds in ([kind] for kind in KINDS) if alone else [list(KINDS)]:
            yield pytest.param(case, kinds, id="-".join([case["name"], case.get("at", "single"), *kinds]))


@pytest.mark.parametrize("case, kinds", list(runs()))
def test_case(case, kinds, caplog):
    caplog.set_level(logging.INFO, "dlock_redis")

    def work(kind):
        run = Case(kind, case, caplog)
        try:
            run.run(case["steps"])
        finally:
            run.finish()

    with concurrent.futures.ThreadPoolExecutor(len(kinds)) as pool:
        for done in [pool.submit(work, kind) for kind in kinds]:
            done.result()
