#!/usr/bin/env bash
# Each case fails on a client with a fault: a case that nothing fails proves nothing. `planted.sh PROJECT`, where run.sh has unpacked
# the crate: a fault is put into its source, and taken back.
set -euo pipefail
cd "$1"
crate=dlock-redis-0.6.0-dev/src
cp -r "$crate" source
missed=() planted=' '
features=(--features cluster,dlock-redis/cluster)

# plant TEST 'NAMES' FILE WHAT BY [FILE WHAT BY …]: with WHAT (a pattern of perl's) replaced, each of these fails.
plant() {
    local test=$1 names=$2 what=$4
    shift 2
    while [ $# -gt 0 ]; do
        WHAT=$2 BY=$3 perl -0pi -e 's/$ENV{WHAT}/$ENV{BY}/s or die "no such place: $ENV{WHAT}\n"' "$crate/$1"
        shift 3
    done
    touch "$crate/lib.rs"
    cargo build --quiet "${features[@]}" --test "$test"
    [ "$test" != locks ] || cargo build --quiet "${features[@]}" --example process
    for name in $names; do
        planted+="$name "
        if timeout 60 cargo test --quiet "${features[@]}" --test "$test" -- "$name" >/dev/null 2>&1; then
            missed+=("$name")
            echo "MISSED  $name: $what"
        else
            echo "seen    $name"
        fi
    done
    cp source/* "$crate"
}

export DLOCK_LATE=2
plant cases 'closed_try hung_try' locks.rs 'Ok\(self.take\(wait\).await\?.and_then' 'Ok(self.take(wait).await.unwrap_or(None).and_then' # failures are "it is taken"
plant cases 'closed_two_seconds hung_later' take.rs 'cause: Some\(Arc::new\(cause\)\)' 'cause: Some(Arc::new(cause)).filter(|_| false)'
plant cases closed_without_bound take.rs 'tracing::warn!\("still waiting' 'tracing::trace!("quietly'
plant cases silent_path session.rs 'if end <= now && self.grace <= now \{' 'if end.is_zero() {' # no clock
plant cases slow_path settings.rs '\[10, 30, 3\].map\(Duration::from_secs\)' '[10000, 30000, 150].map(Duration::from_millis)'
plant cases 'wrong_password no_right_to_the_command no_module two_that_wait_for_each_other' error.rs \
    'pub\(crate\) fn is_retryable\(&self\) -> bool \{' \
    'pub(crate) fn is_retryable(&self) -> bool { if matches!(self, Error::Redis(_) | Error::Deadlock(_)) { return true; }'
plant cases replaced session.rs '"cancelled" \| "replaced"' '"cancelled"'
plant cases 'two_dead_links_of_five one_hung_node_of_three' session.rs 'let reply = link.call_within\(&needs.key, command, within, true\).await;' \
    'static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(()); let one = ONE.lock().await; let reply = link.call_within(&needs.key, command, within, true).await; if reply.is_err() { sleep(self.settings.lease).await; } drop(one);'
plant cases two_thousand_holds_at_200_ms session.rs 'if held.end < sent \+ held.lease / 2 \{' 'if !held.end.is_zero() {'
plant cases 'forced deleted expired cut_and_kept' session.rs 'is_missing\(&session.task\)\)' 'is_missing(&session.task) && self.settings.lease.is_zero())'
plant cases a_short_hold_beside_a_long_one session.rs 'if held.end < sent \+ held.lease / 2 \{' 'if held.end.is_zero() {'
plant cases cut_wait session.rs 'sleep\(PAUSE\).await;' 'sleep(9999 * PAUSE).await;'
plant cases 'wait_over_a_failover wait_over_a_switch wait_over_a_crash wait_over_a_slot_move' session.rs \
    'asked.tell\(Row::Ended\("gone".into\(\)\)\);' 'let _ = asked;' session.rs '"wrongtype" \| "again"' '"wrongtype"'
plant cases 'hold_over_a_failover hold_over_a_switch hold_over_a_slot_move a_hold_over_a_crash an_overflow_of_rows' hold.rs \
    '!held.is_renewed && !held.is_released' 'held.is_renewed'
plant cases after_close locks.rs 'self.0.close\(\);' ''
plant cases a_thousand_cycles library.rs 'let opening = opening.clone\(\);' 'let opening = opening.clone(); std::mem::forget(current.opening.take());' # a connection a command
plant cases 'dropped sixty_forgotten_at_200_ms' hold.rs 'let errand = state.release\(&self.granted.hold, None\);\s+state.errands.extend\(errand\);' 'let _ = state;'
plant cases the_replica_frozen take.rs 'if word == "again" \{' 'if word == "never" {'
plant cases 'a_time_out_leaves_no_place a_time_out_in_the_queue' take.rs 'if self.may_be_there \{' 'if self.terms.keys.is_empty() {' \
    take.rs 'if left < FAR \{ millis\(left\) \} else \{ 0 \}' '600_000' \
    session.rs 'LINGER: Duration = Duration::from_secs\(1\)' 'LINGER: Duration = Duration::from_secs(600)' \
    session.rs '\("granted", _\) => self.errand\(.*?\),\n' '("granted", _) => {}'
plant cases a_late_word session.rs 'session.heard.max\(sent\)' 'session.heard'
plant cases a_hold_that_may_not_last session.rs '\("taken", Some\(true\)\) => self.taken\(&hold, end\)' '("taken", Some(true)) => {}'
plant cases 'several_permits a_large_request_is_not_overtaken permits_outlast_a_cut' take.rs '\*permits > 1' '*permits > 99'
plant cases bad_arguments locks.rs 'terms.keys.iter\(\).any\(Vec::is_empty\)' 'terms.keys.is_empty()'
plant cases first_come_first_served locks.rs 'self.take\(after\).await\?.ok_or' \
    'loop { if let Some(holds) = self.clone().take(Duration::ZERO).await? { return Ok(holds); } if after.is_zero() { break; } tokio::time::sleep(Duration::from_millis(50)).await; } None.ok_or'
plant cases a_try_takes_no_place take.rs '&owner, is_try, left\);' '&owner, false, Duration::from_secs(600));' take.rs 'if self.may_be_there \{' 'if self.terms.keys.is_empty() {'
plant cases 'readers_and_a_writer a_semaphore_of_three' take.rs 'if self.shared \{' 'if self.vote {' take.rs '= self.limit \{' '= self.limit.filter(|_| self.vote) {' take.rs '= self.permits.filter' '= self.permits.filter(|_| self.vote).filter'
plant cases no_write_after_the_loss hold.rs 'let mut guarded = cmd\("DLOCK.GUARD"\);\s+guarded.arg\(self.key\(\)\).arg\(self.token\(\)\);' \
    'let mut guarded = Cmd::new();'
plant cases no_right_to_release errand.rs '\.filter\(\|_\| refused\)' '.filter(|_| refused && self.closed)'
plant cases a_turn_takes_three_commands take.rs 'match &taken \{' \
    'let _ = self.ask(&key, cmd("DLOCK.HELD").arg(&key).clone()).await; match &taken {'
plant cases 'a_try_at_a_closed_port a_try_at_a_replica a_try_without_replicas a_try_at_a_busy_server a_try_at_a_loading_server' take.rs \
    'self.is_try\(\) \|\| self.terms.vote \|\| !error.is_retryable' '!error.is_retryable'
plant cases a_hold_over_a_busy_server error.rs '\| "BUSY"' ''
plant cases a_wait_at_a_loading_server error.rs '\| "LOADING"' ''
plant cases a_wait_at_a_drained_server error.rs 'Error::NoAck\(_\) \| Error::Quarantine\(_\) =>' 'Error::NoAck(_) =>'
plant cases no_time_out_is_too_long take.rs 'began.saturating_add\(if' 'began.add(if' take.rs 'use std::sync::Arc;' 'use std::ops::Add; use std::sync::Arc;'
plant cases asked_again_after_a_lost_reply take.rs 'if !is_first \|\| tokens' 'if tokens'
plant cases late_commands_of_open_connections take.rs 'self.number \+= 1;' 'self.number = 1;' \
    errand.rs 'cmd\("DLOCK.CANCEL"\).arg\(&self.hold.key\).arg\(&self.owner\)' 'cmd("DLOCK.RELEASE").arg(&self.hold.key).arg(&self.owner).arg("HOLDS").arg(0)'
plant cases 'a_late_request_is_given_back a_row_that_nobody_knows' session.rs '\("granted", _\) => self.errand\(.*?\),\n' '("granted", _) => {}'
plant cases a_loss_is_given_back hold.rs 'if !is_taken \{' 'if is_taken {'
plant cases released_during_a_failover errand.rs 'if error.is_retryable\(\) => return false' 'if error.is_retryable() && self.closed => return false'
plant cases released_while_the_server_is_away errand.rs 'self.client.put_back\(errand\)' 'drop(errand)'
plant cases the_last_word session.rs 'let is_last = used \+ LINGER < sent;' 'let is_last = used > sent;'
plant cases a_free_lock_takes_two_commands state.rs 'now\(\) >= self.third\(\)' 'now() >= self.since'
plant cases said_twice take.rs '\|\| !error.is_retryable\(\) =>' '|| true =>'
plant cases 'two_actors_of_one_client an_actor_that_waits_for_itself' take.rs 'match &terms.actor \{' 'match &terms.actor.as_ref().filter(|_| false) {'
plant cases max_hold state.rs 'since.saturating_add\(max_hold\)' 'Duration::MAX.max(max_hold)'
plant cases release_after hold.rs 'self.give_back\(Some\(time\)\)' 'self.give_back(None)'
plant cases many_of_one_slot locks.rs 'slot_of\(one\) == slot_of\(next\)' 'slot_of(one) > slot_of(next)'
plant cases a_refused_session_is_the_reason session.rs 'session.trouble = Some\(error.clone\(\)\);' ''
plant cases a_refused_session_is_the_reason session.rs 'if asked.is_vote\(\) \|\| !error.is_retryable\(\)' 'if asked.is_vote()'

plant faults a_grant_that_is_read_late take.rs 'sent.saturating_add\(asked.terms.lease\)' 'now().max(sent).saturating_add(asked.terms.lease)'
plant faults a_guarded_command_is_sent_once library.rs 'builder\(\).retries\(0\)' 'builder().retries(9)'
plant faults a_release_that_is_given_up errand.rs 'errand.tries \+= 1;' '' errand.rs 'let result = reply' 'errand.tries += 1; let result = reply'
plant faults a_release_that_is_given_up errand.rs ' \|\| matches!\(kind, Kind::Leave\(_\)\)' ''
plant faults a_release_does_not_wait errand.rs 'within / 3' 'within'
plant faults a_late_row session.rs 'if self.leave_again\(&hold, owner\)' 'if self.closed'
plant faults a_late_command hold.rs 'self.errand\(Kind::Leave\(time\), .*?\);' 'let _ = owner;'
plant faults a_late_renewal errand.rs 'self.leave_again\(hold, &errand.owner\);' ''
plant faults a_late_command hold.rs 'left.end.saturating_sub\(now\)' 'left.end.max(now)'
plant faults one_lost_answer session.rs 'let within = LEAST.max\(needs.shortest / 2\).min\(self.settings.reply_timeout\)' 'let within = self.settings.reply_timeout.max(LEAST)'
plant faults one_lost_answer session.rs 'if !was_silent \{' 'if was_silent || !was_silent {'
plant faults one_lost_answer session.rs 'within, true\)' 'within, false)'
plant faults a_campaign_after_a_pause election.rs 'let _ = self.resign\(\).await;' ''
plant faults late_refusals library.rs 'generation.compare_exchange\(generation, generation \+ 1, Ordering::Relaxed, Ordering::Relaxed\)' \
    'generation.fetch_add(1, Ordering::Relaxed)'
plant faults a_wait_that_is_given_up take.rs 'if self.may_be_there \{' 'if self.terms.keys.is_empty() {'
plant faults what_is_still_held_after_a_pause session.rs 'self.grace = now \+ self.settings.reply_timeout;' ''
plant faults a_hold_that_is_dropped_outside session.rs '.or_else\(\|\| state.runtime.clone\(\)\)' ''
plant faults an_observer_that_panics settings.rs 'std::panic::catch_unwind\(AssertUnwindSafe\(\|\| match' \
    'Ok::<(), ()>(std::convert::identity::<()>(match'
plant faults a_server_that_ends_each errand.rs 'sleep\(pause\).await;' '' session.rs 'sleep\(PAUSE\).await;' ''
plant faults a_try_finds_the_primary library.rs 'if !is_only \{' 'if false && !is_only {'
plant locks no_two_lead election.rs 'hold.clone\(\).filter\(\|hold\| !hold.left\(\).is_zero\(\)\)' 'hold.clone()'
plant documented work_ends_with_the_term election.rs 'why = hold.lost\(\) => return' 'why = std::future::pending::<String>() => return'
plant fakes a_loss_is_told fakes.rs 'state.lose\(hold, "forced"\)' 'drop((&state, hold))'
plant quorum 'quorum_a_majority_is_enough' quorum.rs 'self.votes.len\(\) \/ 2 \+ 1' 'self.votes.len()'
plant quorum 'quorum_a_minority_is_not quorum_is_kept' quorum.rs 'self.votes.len\(\) \/ 2 \+ 1' '1'

for name in $(cargo test --quiet "${features[@]}" --test cases -- names); do
    [[ $planted = *" $name "* ]] || missed+=("$name, which has none")
done
rm -r source
[ ${#missed[@]} = 0 ] || { echo "faults that nothing has seen: ${missed[*]}"; exit 1; }
