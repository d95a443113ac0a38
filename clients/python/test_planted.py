"""Each case fails on a client with a fault: a case that nothing fails proves nothing."""

import logging
import threading
import time

import pytest
from redis.exceptions import BusyLoadingError

import stage
import test_cases
import test_leader
from dlock_redis import _errors, _hold, _library, _locks, _session, _settings, _take, _threads
from test_leader import candidate, place  # noqa: F401

ALIVE = []  # threads may be in a fault that has been taken back: CPython 3.11 would call what it has freed
CASES = {case["name"]: case for case in test_cases.CASES}


def nothing(*_, **__):
    return None


def instead(target, name, make):
    """A fault: this is called instead of what it is made of."""
    return lambda plant: plant(target, name, make(getattr(target, name)))


def settings(**planted):
    """Whatever the program sets, this is set."""
    def make(begin):
        def other(self, *how):
            begin(self, *how)
            vars(self).update(planted)

        return other

    return instead(_settings.Settings, "__init__", make)


no_bound, short_bound = settings(reply_timeout=20.0), settings(reply_timeout=0.15)


def no_cause(plant):
    plant(_take.Take, "_out_of_time", lambda self: self.end())


def says_taken(plant):
    plant(_take.Take, "result", lambda self: list(self.holds.values()) or None)


def silent_wait(plant):
    plant(_take.log, "warning", nothing)


def no_clock(plant):
    plant(_session.Sessions, "tick", nothing)


def passes_not(code):
    return lambda plant: plant(_errors, "_PASSING_CODES", _errors._PASSING_CODES - {code})


def is_final(kind):
    passes = _take.passes
    return lambda plant: plant(_take, "passes", lambda error: not isinstance(error, kind) and passes(error))


def busy_is_final(plant):
    passes_not("BUSY")(plant)


def all_passes(plant):
    plant(_take, "passes", lambda error: True)
    plant(_session, "passes", lambda error: True)
    end = _take.Take.end
    goes_on = lambda self, error=None: self._failed(error) if error and self.request.wait != 0 else end(self, error)
    plant(_take.Take, "end", goes_on)


def keeps_nothing(plant):
    plant(_session.Sessions, "keep", nothing)


def one_loop(plant):
    """Of all clients and servers: whoever waits for one that is silent keeps none of the others."""
    lock = threading.Lock()
    no_bound(plant)
    for kind in (_library.Server, _library.Cluster):

        def alone(self, words, call=kind.call):
            if words[0] != "DLOCK.SESSION":
                return call(self, words)
            with lock:
                return call(self, words)

        plant(kind, "call", alone)


def renews_each(plant):
    told = _session.Sessions.told

    def renews(self, sent, reply, key):
        session = told(self, sent, reply, key)
        for held in list(session.holds.values()):
            self.renew(held)
        return session

    plant(_session.Sessions, "told", renews)


def one_end_for_all(plant):
    """The least lease of a session is believed to be that of all."""
    told, renew = _session.Sessions.told, _session.Sessions.renew

    def never_renews(self, sent, reply, key):
        self.reads = True
        try:
            return told(self, sent, reply, key)
        finally:
            self.reads = False

    plant(_session.Sessions, "told", never_renews)
    plant(_session.Sessions, "renew", lambda self, held: None if getattr(self, "reads", False) else renew(self, held))


def reads_no(*words):
    """Rows of these words are not read."""
    row = _session.Sessions._row

    def deaf(self, session, word, *more):
        if word not in words:
            row(self, session, word, *more)

    return lambda plant: plant(_session.Sessions, "_row", deaf)


hears_no_loss = reads_no("forced", "removed", "expired", "released")


def recovers_nothing(plant):
    plant(_session.Sessions, "renew", nothing)


def waits_for_ever(plant):
    """Another session, or `again`, is nothing to a wait."""
    refused = _take.Take.refused
    plant(_take.Take, "refused", lambda self, word: refused(self, word) if word not in ("gone", "again") else None)
    plant(_session.Sessions, "keep", nothing)


def asks(change):
    """Whatever a program asks for, this is asked for."""
    def make(begin):
        def other(self, *about, **how):
            begin(self, *about, **how)
            change(self)

        return other

    return instead(_take.Request, "__init__", make)


one_permit = asks(lambda request: setattr(request, "limit", request.limit[:2]))
always_alone = asks(lambda request: setattr(request, "limit", ()))
no_max_hold = asks(lambda request: setattr(request, "max_hold", float("inf")))
no_actor = asks(lambda request: setattr(request, "actor", None))


def asks_again_and_again(plant):
    """Instead of waiting in the queue."""
    take = _threads.ThreadSessions.take

    def tries(self, request, make):
        request.wait = 0
        while (holds := take(self, request, make)) is None:
            time.sleep(0.05)
        return holds

    plant(_threads.ThreadSessions, "take", tries)


def tries_by_waiting(plant):
    asks(lambda request: setattr(request, "wait", request.wait or 0.1))(plant)
    plant(_session, "LINGER", 600.0)
    plant(_take.Take, "_cancel", nothing)
    words = _take.Request.words
    plant(_take.Request, "words", lambda self, session, owner, block: words(self, session, owner, 600_000))


def tries_for_a_second(plant):
    asks(lambda request: setattr(request, "wait", request.wait or 1.0))(plant)


def guards_nothing(plant):
    plant(_hold.HoldBase, "_guarded", lambda self, command: command)


def ends_quietly(plant):
    plant(_session.Sessions, "close", nothing)
    plant(_library.Server, "close", nothing)


def a_client_a_lock(plant):
    kept, call = [], _library.Server.call

    def another(self, words):
        kept.append(_library.Server(self._client, 3.0))
        return call(kept[-1], words)

    plant(_library.Server, "call", another)


def forgets(plant):
    plant(_session.Sessions, "forget", nothing)


def gives_back_the_forgotten(plant):
    def forget(self, held):
        self.give_back(held.name, held.owner, held.token, held.lease)
        logging.getLogger("dlock_redis").warning("forgotten")

    plant(_session.Sessions, "forget", forget)


def believes_the_unconfirmed(plant):
    told = _session.Sessions.told

    def all_is_well(self, sent, reply, key):
        reply[2] = 6000
        return told(self, sent, reply, key)

    plant(_session.Sessions, "told", all_is_well)


def loses_the_unconfirmed(plant):
    """A grant that was not confirmed is taken for the loss of what is held."""
    refused = _take.Take.refused

    def lost(self, word):
        for held in list(self.sessions.held.values()) if word == "again" else ():
            self.sessions.end(held, "unconfirmed")
        refused(self, word)

    plant(_take.Take, "refused", lost)


def knows_no_noack(plant):
    plant(_take, "NoAck", _errors.DLockError)


def leaves_nothing(plant):
    """What is left stays in the queue, and its session is kept."""
    plant(_take.Take, "_cancel", nothing)
    words = _take.Request.words
    longer = lambda self, session, owner, block: words(self, session, owner, block and 600_000)
    plant(_take.Request, "words", longer)
    plant(_session, "LINGER", 600.0)
    plant(_session.Sessions, "give_back", nothing)


def hears_nothing(told):
    """Whatever a server has answered, the place may be gone."""
    def other(self, sent, reply, key):
        session = told(self, sent, reply, key)
        session.sent = float("-inf")
        return session

    return other


def asks_as_new(plant):
    answered = _take.Take.answered

    def first(self, sent, reply):
        self._asked = min(self._asked, 1)
        answered(self, sent, reply)

    plant(_take.Take, "answered", first)


def takes_anything(plant):
    request = _take.Request.__init__
    plant(_take.Request, "__init__", lambda self, s, keys, wait, **_: request(self, s, [keys[0] or "k"], 0))


def counts_32_bits(plant):
    plant(_take, "seconds", lambda name, value: value and int(value * 1000) % 2**31 / 1000)


def keeps_what_it_may_not_give_back(plant):
    never = lambda self, held, *_: _session.Errand(("PING", held.name), lambda: False)
    plant(_session.Sessions, "_left_to", never)


def another_client_each(plant):
    """A turn is more than a request, an answer to SESSION, and a release."""
    join = _session.Sessions.join

    def joins(self, held, session):
        join(self, held, session)
        self.renew(held)

    plant(_session.Sessions, "join", joins)


def one_owner(plant):
    plant(_session.Sessions, "owner", lambda self, actor: self.name + b"/me")


def releases_without_token(plant):
    """An owner that is used again, and a wait that is left by a release without a token, which may be read late."""
    one_owner(plant)
    cancel = _take.Take._cancel

    def leaves(self, session):
        cancel(self, session)
        words = ("DLOCK.RELEASE", self.request.names[0], self.owner, "HOLDS", 0)
        self.sessions.errand(_session.Errand(words, lambda: True))

    plant(_take.Take, "_cancel", leaves)


def no_errands(plant):
    plant(_session.Sessions, "errand", nothing)


def wants_every_row(plant):
    plant(_session.Sessions, "give_back", nothing)


def no_last_word(plant):
    plant(_session.Sessions, "hear_the_last", nothing)


def keeps_young_ones(plant):
    plant(_hold.Held, "is_old", lambda self: True)


def forked_unseen(plant):
    plant(_locks.LocksBase, "_begin_again", nothing)


def runs_anything(plant):
    plant(_threads, "done", lambda value: value)


def releases_at_once(plant):
    plant(_threads.Hold, "release_after", lambda self, seconds: self.release())


def one_by_one(plant):
    of_one = lambda whole, key: _take.Request(_settings.Settings(whole.lease, 30.0, 3.0, 0.1, None), [key], whole.wait)
    plant(_threads, "by_slot", lambda client, whole: [of_one(whole, key) for key in whole.keys])


def hides_why(plant):
    failed = _session.Loop._failed

    def hidden(self, error):
        failed(self, error)
        self.session.error = None

    plant(_session.Loop, "_failed", hidden)


def ends_no_wait(plant):
    plant(_session, "passes", lambda error: True)


def says_once(plant):
    plant(_session, "passes", lambda error: False)


def asks_once(plant):
    plant(_take, "passes", lambda error: False)


def releases_twice(plant):
    plant(_threads.Hold, "__exit__", lambda self, *_: self.release())


FAULTS = [
    ("closed_try", says_taken),
    ("closed_two_seconds", no_cause),
    ("closed_without_bound", silent_wait),
    ("hung_try", no_bound),
    ("hung_later", no_bound),
    ("silent_path", no_clock),
    ("slow_path", short_bound),
    ("wrong_password", all_passes),
    ("no_right_to_the_command", all_passes),
    ("no_module", all_passes),
    ("two_dead_links_of_five", one_loop),
    ("one_hung_node_of_three", one_loop),
    ("two_thousand_holds_at_200_ms", renews_each),
    ("forced", hears_no_loss),
    ("deleted", hears_no_loss),
    ("expired", hears_no_loss),
    ("cut_and_kept", keeps_nothing),
    ("cut_wait", waits_for_ever),
    ("after_close", ends_quietly),
    ("a_thousand_cycles", a_client_a_lock),
    ("dropped", forgets),
    ("the_replica_frozen", believes_the_unconfirmed),
    ("the_replica_frozen", loses_the_unconfirmed),
    ("the_replica_frozen", knows_no_noack),
    ("a_time_out_leaves_no_place", leaves_nothing),
    ("a_late_word", instead(_session.Sessions, "told", hears_nothing)),
    ("a_hold_that_may_not_last", reads_no("taken")),
    ("several_permits", one_permit),
    ("a_large_request_is_not_overtaken", one_permit),
    ("permits_outlast_a_cut", one_permit),
    ("bad_arguments", takes_anything),
    ("hold_over_a_failover", recovers_nothing),
    ("hold_over_a_switch", recovers_nothing),
    ("hold_over_a_slot_move", recovers_nothing),
    ("a_hold_over_a_crash", recovers_nothing),
    ("wait_over_a_failover", waits_for_ever),
    ("wait_over_a_switch", waits_for_ever),
    ("wait_over_a_crash", waits_for_ever),
    ("wait_over_a_slot_move", waits_for_ever),
    ("first_come_first_served", asks_again_and_again),
    ("a_try_takes_no_place", tries_by_waiting),
    ("a_time_out_in_the_queue", leaves_nothing),
    ("readers_and_a_writer", always_alone),
    ("a_semaphore_of_three", always_alone),
    ("two_that_wait_for_each_other", all_passes),
    ("replaced", reads_no("replaced")),
    ("no_write_after_the_loss", guards_nothing),
    ("no_right_to_release", keeps_what_it_may_not_give_back),
    ("a_turn_takes_three_commands", another_client_each),
    ("no_time_out_is_too_long", counts_32_bits),
    ("sixty_forgotten_at_200_ms", forgets),
    ("a_try_at_a_closed_port", tries_for_a_second),
    ("a_try_at_a_replica", tries_for_a_second),
    ("a_try_without_replicas", tries_for_a_second),
    ("a_try_at_a_busy_server", tries_for_a_second),
    ("a_hold_over_a_busy_server", busy_is_final),
    ("a_try_at_a_loading_server", tries_for_a_second),
    ("a_wait_at_a_loading_server", is_final(BusyLoadingError)),
    ("a_wait_at_a_drained_server", is_final(_errors.Quarantine)),
    ("asked_again_after_a_lost_reply", asks_as_new),
    ("late_commands_of_open_connections", releases_without_token),
    ("a_late_request_is_given_back", wants_every_row),
    ("a_loss_is_given_back", wants_every_row),
    ("released_while_the_server_is_away", no_errands),
    ("released_during_a_failover", says_once),
    ("an_overflow_of_rows", recovers_nothing),
    ("a_row_that_nobody_knows", wants_every_row),
    ("the_last_word", no_last_word),
    ("a_free_lock_takes_two_commands", keeps_young_ones),
    ("said_twice", asks_once),
    ("two_actors_of_one_client", no_actor),
    ("an_actor_that_waits_for_itself", no_actor),
    ("a_fork", forked_unseen),
    ("forgotten_and_left_to_its_lease", gives_back_the_forgotten),
    ("work_that_is_yet_to_be_done", runs_anything),
    ("released_by_the_work_itself", releases_twice),
    ("max_hold", no_max_hold),
    ("release_after", releases_at_once),
    ("many_of_one_slot", one_by_one),
    ("a_refused_session_is_the_reason", hides_why),
    ("a_refused_session_is_the_reason", ends_no_wait),
    ("a_short_hold_beside_a_long_one", one_end_for_all),
]


def test_every_case_has_its_fault():
    assert {name for name, _ in FAULTS} == set(CASES)


LONG = (
    "a_time_out_in_the_queue",
    "sixty_forgotten_at_200_ms",
    "a_turn_takes_three_commands",
    "two_thousand_holds_at_200_ms",
    "a_thousand_cycles",
    "the_replica_frozen",
    "a_hold_that_may_not_last",
    "asked_again_after_a_lost_reply",
    "an_overflow_of_rows",
    "late_commands_of_open_connections",
    "a_short_hold_beside_a_long_one",
)


def bounded(step):
    """A wait without a bound gets one: nobody waits for it."""
    return {**step, "timeout": 3} if step["do"] in ("lock", "many") and step.get("timeout", 0) is None else step


@pytest.mark.parametrize("name, fault", FAULTS, ids=[name for name, _ in FAULTS])
def test_a_planted_fault_is_seen(name, fault, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "dlock_redis")
    for module in (stage, test_cases):
        monkeypatch.setattr(module, "PATIENCE", 30 if name in LONG else 6)
    monkeypatch.setattr(test_cases, "LATE", 0.5)
    run = test_cases.Case("threads", CASES[name], caplog)
    try:
        with monkeypatch.context() as plant, pytest.raises(BaseException) as seen:

            def setattr(target, name, value):
                ALIVE.append(value)
                plant.setattr(target, name, value)

            fault(setattr)
            run.run([bounded(step) for step in CASES[name]["steps"]])
    finally:
        run.finish()
    assert not isinstance(seen.value, KeyboardInterrupt)
    print(f"{name}: {type(seen.value).__name__}")


def test_a_leader_that_does_not_step_down_is_seen(server, candidate, monkeypatch):  # noqa: F811
    stays = test_leader.CANDIDATE.replace("while election.is_leader()", "while True")
    monkeypatch.setattr(test_leader, "CANDIDATE", stays.replace("election.guard(", "client.execute_command("))
    with pytest.raises(AssertionError):
        test_leader.test_no_two_lead(server, candidate, "stop", "threads")
