"""Each case fails on a client with a fault: a case that nothing fails proves nothing."""

import logging
import threading

import pytest

import stage
import test_cases
import test_leader
from dlock_redis import _core, _errors, _keep, _link, _request, _take, _threads
from test_leader import candidate, place  # noqa: F401

ALIVE = []  # threads may be in a fault that has been taken back: CPython 3.11 would call what it has freed
CASES = {case["name"]: case for case in test_cases.CASES}


def nothing(*_, **__):
    return None


async def none(*_, **__):
    return None


def no_bound(plant):
    begin = _request.Settings.__init__
    plant(_request.Settings, "__init__", lambda self, **how: begin(self, **{**how, "reply_timeout": 20.0}))


def short_bound(plant):
    begin = _request.Settings.__init__
    plant(_request.Settings, "__init__", lambda self, **how: begin(self, **{**how, "reply_timeout": 0.15}))


def no_cause(plant):
    plant(_take, "LockTimeout", lambda text: _errors.LockTimeout("it is taken"))


def says_taken(plant):
    plant(_take.Taking, "take", none)


def silent_wait(plant):
    plant(_take, "WARN_EVERY", float("inf"))
    plant(_take.log, "warning", nothing)


def no_clock(plant):
    plant(_keep.Keeping, "expire", nothing)


def busy_is_final(plant):
    plant(_errors, "_PASSING_CODES", _errors._PASSING_CODES - {"BUSY"})


def loading_is_final(plant):
    plant(_errors, "_PASSING_CODES", _errors._PASSING_CODES - {"LOADING"})


def all_passes(plant):
    plant(_take, "passes", lambda error: True)


def deaf_is_final(plant):
    async def refused(self, request, *_):
        raise _errors.DLockError("no channel")

    plant(_take.Taking, "_poll", refused)


def keeps_nothing(plant):
    plant(_keep.Keeping, "_round", none)


def one_keeper(plant):
    """Of all clients: whoever waits for one that is silent keeps none of the others."""
    lock = threading.Lock()
    keep = _keep.Keeping._round

    async def alone(self, node):
        with lock:
            await keep(self, node)

    plant(_keep.Keeping, "_round", alone)
    no_bound(plant)


def renews_each(plant):
    keep = _keep.Keeping._round

    async def each(self, node):
        for renewal in self._of(node):
            renewal.detach()
        await keep(self, node)

    plant(_keep.Keeping, "_round", each)


def one_end_for_all(plant):
    kept = _keep.Keeping._kept

    def never_short(self, node, link, sent, reply):
        kept(self, node, link, sent, reply)
        link.short = False

    plant(_keep.Keeping, "_kept", never_short)


def hears_no_loss(plant):
    kept = _keep.Keeping._kept

    def deaf(self, node, link, sent, reply):
        if isinstance(reply, list):
            reply = [min(reply[0], link.renewals), reply[1], []]
            link.renewals = reply[0]
        kept(self, node, link, sent, reply)

    plant(_keep.Keeping, "_kept", deaf)


def ties_nothing_anew(plant):
    plant(_keep.Keeping, "renew", none)


def asks(change):
    """Whatever a program asks for, this is asked for."""
    def fault(plant):
        begin = _request.Request.__init__

        def other(self, *about, **how):
            begin(self, *about, **how)
            change(self)

        plant(_request.Request, "__init__", other)

    return fault


def its(**attributes):
    return asks(lambda request: vars(request).update(attributes))


one_permit = asks(lambda request: setattr(request, "limit", request.limit[:2]))
re_enters_anything = its(permits=1)
always_alone = its(limit=())
no_ephemeral = asks(lambda request: vars(request).update(ephemeral=False, renewed=request.renewed[-2:]))
no_suffix = asks(lambda request: setattr(request, "owner", request.owner.split("#")[0]))


def never_re_enters(plant):
    plant(_take.Taking, "_held_already", nothing)


def asks_again_and_again(plant):
    take = _take.Taking._take

    async def tries(self, request, timeout, began):
        while (token := await take(self, request, 0, began)) is None:
            await self.sleep(0.05)
        return token

    plant(_take.Taking, "_take", tries)


def tries_by_waiting(plant):
    take = _take.Taking._take

    async def waits(self, request, timeout, began):
        return await take(self, request, timeout or 0.1, began)

    plant(_take.Taking, "_take", waits)
    leaves_nothing(plant)


def tries_for_a_second(plant):
    take = _take.Taking._take

    async def waits(self, request, timeout, began):
        return await take(self, request, timeout or 1.0, began)

    plant(_take.Taking, "_take", waits)


def releases_all(plant):
    plant(_link.Renewal, "live", lambda self: [])


def guards_nothing(plant):
    call = _core.Core.call

    async def unguarded(self, key, words, *how):
        return await call(self, key, words[3:] if words[0] == "DLOCK.GUARD" else words, *how)

    plant(_core.Core, "call", unguarded)


def hides_why(plant):
    plant(_keep.Keeping, "_refused", nothing)


def keeps_what_nobody_has(plant):
    async def stays(self, node, link):
        return link

    plant(_keep.Keeping, "_replace", stays)


def dies_without_ping(plant):
    came = _link.Subscriber.came

    def dies(self, reply):
        came(self, reply)
        if isinstance(reply, Exception):
            self.die(reply)

    plant(_link.Subscriber, "came", dies)


def forgets_the_others(plant):
    attempt = _take.Taking._attempt

    async def asks_twice(self, request, *how):
        waits, route = {}, self.route(request.key)
        real, route.waits = route.waits, waits
        try:
            return await attempt(self, request, *how)
        finally:
            route.waits = real

    plant(_take.Taking, "_attempt", asks_twice)


def counts_32_bits(plant):
    plant(_threads, "seconds", lambda name, value: value and int(value * 1000) % 2**31 / 1000)


def waits_for_ever(plant):
    notified = _link.Node.notified

    def not_gone(self, message):  # the server tells of the link's end, where the subscriber's comes later
        if message[-1][:5] != b"gone ":
            notified(self, message)

    plant(_link.Node, "notified", not_gone)
    plant(_link.Node, "tell", nothing)


def ends_quietly(plant):
    plant(_core.Core, "end", nothing)


def a_link_a_lock(plant):
    link = _threads.ThreadCore.link
    kept = []

    async def another(self, node, until):
        if node.link is not None:
            kept.append(node.link)
            node.link = None
        return await link(self, node, until)

    plant(_threads.ThreadCore, "link", another)


def forgets(plant):
    plant(_keep.Keeping, "_lose_forgotten", lambda self: self.forgotten.clear())


def believes_the_unconfirmed(plant):
    kept = _keep.Keeping._kept

    def moved(self, node, link, sent, reply):
        kept(self, node, link, sent, [link.renewals, 6000, []] if isinstance(reply, _errors.NoAck) else reply)

    plant(_keep.Keeping, "_kept", moved)


def loses_the_unconfirmed(plant):
    kept = _keep.Keeping._kept

    def lost(self, node, link, sent, reply):
        if isinstance(reply, _errors.NoAck):
            for renewal in self._of(node):
                self.lose(renewal, "unconfirmed")
        kept(self, node, link, sent, reply)

    plant(_keep.Keeping, "_kept", lost)


def knows_no_noack(plant):
    plant(_errors, "_TYPES", {**_errors._TYPES, "NOACK": _errors.DLockError})


def leaves_nothing(plant):
    plant(_take.Taking, "leave", nothing)


def keeps_the_name(plant):
    plant(_request.Request, "add", nothing)


def keeps_the_name_without_a_link(plant):
    abandon = _take.Taking.abandon

    def linked(self, renewal):
        link = renewal.link or renewal.node.link
        if link is None or link.error is not None:
            self.lose(renewal, "given up")
        else:
            abandon(self, renewal)

    plant(_take.Taking, "abandon", linked)


def asks_as_new(plant):
    attempt = _take.Taking._attempt

    async def first(self, request, *how):
        request.asked = False
        return await attempt(self, request, *how)

    plant(_take.Taking, "_attempt", first)


def takes_anything(plant):
    plant(_request, "seconds", lambda name, value: value)
    plant(_threads, "seconds", lambda name, value: 0)
    request = _request.Request.__init__
    plant(_request.Request, "__init__", lambda self, s, key, *_: request(self, s, key or "k", "me"))


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
    ("no_channel", deaf_is_final),
    ("two_dead_links_of_five", one_keeper),
    ("one_hung_node_of_three", one_keeper),
    ("two_thousand_holds_at_200_ms", renews_each),
    ("forced", hears_no_loss),
    ("deleted", hears_no_loss),
    ("expired", hears_no_loss),
    ("cut_and_kept", ties_nothing_anew),
    ("cut_wait", waits_for_ever),
    ("after_close", ends_quietly),
    ("a_thousand_cycles", a_link_a_lock),
    ("dropped", forgets),
    ("the_replica_frozen", believes_the_unconfirmed),
    ("the_replica_frozen", loses_the_unconfirmed),
    ("the_replica_frozen", knows_no_noack),
    ("a_time_out_leaves_no_place", leaves_nothing),
    ("a_hold_that_may_not_last", one_end_for_all),
    ("several_permits", one_permit),
    ("a_large_request_is_not_overtaken", one_permit),
    ("permits_outlast_a_cut", one_permit),
    ("permits_of_an_owner", re_enters_anything),
    ("bad_arguments", takes_anything),
    ("hold_over_a_failover", ties_nothing_anew),
    ("hold_over_a_switch", ties_nothing_anew),
    ("hold_over_a_slot_move", ties_nothing_anew),
    ("wait_over_a_failover", waits_for_ever),
    ("wait_over_a_switch", waits_for_ever),
    ("wait_over_a_crash", waits_for_ever),
    ("wait_over_a_slot_move", waits_for_ever),
    ("an_ephemeral_hold_over_a_failover_elsewhere", ties_nothing_anew),
    ("first_come_first_served", asks_again_and_again),
    ("a_try_takes_no_place", tries_by_waiting),
    ("a_time_out_in_the_queue", leaves_nothing),
    ("an_ephemeral_hold_ends_with_its_connection", no_ephemeral),
    ("readers_and_a_writer", always_alone),
    ("a_semaphore_of_three", always_alone),
    ("an_inner_hold_ends_no_outer_one", releases_all),
    ("two_that_wait_for_each_other", all_passes),
    ("replaced", all_passes),
    ("a_name_is_of_one_client", no_suffix),
    ("no_write_after_the_loss", guards_nothing),
    ("a_refused_keep_is_the_reason", hides_why),
    ("no_right_to_release", keeps_what_nobody_has),
    ("no_right_to_renew", all_passes),
    ("no_right_to_ping", dies_without_ping),
    ("closed_without_a_channel", ends_quietly),
    ("a_turn_takes_three_commands", forgets_the_others),
    ("a_re_entry_sends_nothing", never_re_enters),
    ("no_time_out_is_too_long", counts_32_bits),
    ("sixty_forgotten_at_200_ms", forgets),
    ("a_try_at_a_closed_port", tries_for_a_second),
    ("a_try_at_a_replica", tries_for_a_second),
    ("a_try_without_replicas", tries_for_a_second),
    ("a_try_at_a_busy_server", tries_for_a_second),
    ("a_hold_over_a_busy_server", busy_is_final),
    ("a_try_at_a_loading_server", tries_for_a_second),
    ("a_wait_at_a_loading_server", loading_is_final),
    ("a_late_release_ends_no_later_hold", keeps_the_name),
    ("a_late_release_of_a_lost_hold", keeps_the_name),
    ("asked_again_after_a_lost_reply", asks_as_new),
    ("taken_again_after_a_loss", keeps_the_name_without_a_link),
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
    "a_late_release_ends_no_later_hold",
    "asked_again_after_a_lost_reply",
    "taken_again_after_a_loss",
)


def bounded(step):
    """Who waits for ever is not waited for."""
    return {**step, "timeout": 3} if step["do"] == "lock" and step.get("timeout", 0) is None else step


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
