#!/usr/bin/env bash
# Each case fails on a client with a fault: a case that nothing fails proves nothing. `planted.sh PROJECT`, where run.sh has unpacked
# the crate: a fault is put into its source, and taken back.
set -euo pipefail
cd "$1"
crate=dlock-redis-0.5.0-dev/src
cp -r "$crate" source
missed=()

# plant TEST 'NAMES' FILE WHAT BY: with WHAT (a pattern of perl's) replaced, each of these fails.
plant() {
    local test=$1 names=$2 file=$3
    WHAT=$4 BY=$5 perl -0pi -e 's/$ENV{WHAT}/$ENV{BY}/s or die "no such place: $ENV{WHAT}\n"' "$crate/$file"
    touch "$crate/lib.rs"
    cargo build --quiet --test "$test"
    [ "$test" != locks ] || cargo build --quiet --example process
    for name in $names; do
        if timeout 60 cargo test --quiet --test "$test" -- "$name" >/dev/null 2>&1; then
            missed+=("$name")
            echo "MISSED  $name: $4"
        else
            echo "seen    $name"
        fi
    done
    cp source/* "$crate"
}

export DLOCK_LATE=2
plant cases 'closed_try hung_try' lock.rs 'self.take\(Some\(self.timeout.unwrap_or_default\(\)\)\).await' \
    'Ok(self.take(Some(self.timeout.unwrap_or_default())).await.unwrap_or(None))' # failures are "it is taken"
plant cases 'closed_two_seconds hung_later' take.rs 'cause: Some\(Arc::new\(cause\)\)' 'cause: None'
plant cases closed_without_bound take.rs 'tracing::warn!\(\s*"still waiting' 'tracing::trace!("quietly'
plant cases 'silent_path two_dead_links_of_five one_hung_node_of_three' renewals.rs 'if end > at \{' 'if end > Duration::ZERO {' # no clock
plant cases 'slow_path' settings.rs '\[10, 60, 5, 3\].map\(Duration::from_secs\)' '[10000, 60000, 5000, 150].map(Duration::from_millis)'
plant cases 'wrong_password no_right_to_the_command no_module two_that_wait replaced no_right_to_renew' error.rs 'pub\(crate\) fn passes\(&self\) -> bool \{' \
    'pub(crate) fn passes(&self) -> bool { if matches!(self, Error::Redis(_) | Error::Deadlock(_) | Error::Replaced(_)) { return true; }'
plant cases no_channel take.rs 'self.poll\(taking\).await' 'self.wait(taking, &name).await'
plant cases 'two_thousand_holds_at_200_ms cut_and_kept the_replica_frozen hold_over an_ephemeral_hold_over' keep.rs \
    'async fn round\(self: &Arc<Self>, name: &str\) -> Result<\(\)> \{' \
    'async fn round(self: &Arc<Self>, name: &str) -> Result<()> { if name.len() < 99 { return Ok(()); }' # keeps nothing
plant cases a_hold_that_may_not_last renewals.rs 'link.short = left < settings.near\(\);' 'let _ = settings.near();'
plant cases 'forced deleted expired' renewals.rs 'let told = if let Value::Array\(lost\) = lost \{ Some\(lost\) \} else \{ None \};' \
    'static NONE: Vec<Value> = Vec::new(); let (told, count) = (Some(&NONE), count.max(link.renewals)); let _ = lost;'
plant cases 'wait_over_a_failover wait_over_a_switch wait_over_a_crash wait_over_a_slot_move' take.rs \
    'Err\(error\) if !error.passes\(\) => return Err' 'Err(error) if taking.queued || !error.passes() => return Err'
plant cases 'a_late_release_ends a_late_release_of' release.rs 'unanswered.insert\(request.owner.clone\(\)\);' 'unanswered.clear();' # keeps the name
plant cases taken_again renewals.rs 'self.retire\(&request\);(?= // without a link)' 'if self.link(&node).is_some() { self.retire(&request); }'
plant cases asked_again take.rs 'taking.asked.is_set\(\)' 'taking.asked.is_set() && false' # believes in the whole lease
plant cases cut_wait state.rs 'for sender in owners.values\(\) \{' 'for sender in owners.values().take(0) {'
plant cases after_close core.rs 'state.lose_all\("closed", \|_\| true\)' '0' # ends quietly
plant cases a_thousand_cycles core.rs 'state.node\(name\).link = Some\(link.clone\(\)\);' 'std::mem::forget(link.clone());' # a link a lock
plant cases 'a_time_out_leaves_no_place a_time_out_in_the_queue' take.rs 'self.core.abandon\(&self.request, &link\);' 'drop(link);' # queue_grace keeps the place
plant cases 'dropped sixty_forgotten' lock.rs 'self.core.drop_hold\(&self.shared\);' ''
plant cases 'several_permits a_large_request_is_not_overtaken permits_outlast_a_cut' request.rs 'if self.mode.permits\(\) > 1' 'if self.mode.permits() < 1'
plant cases permits_of_an_owner renewals.rs 'if permits > has \{' 'if permits > has + 9 {'
plant cases first_come take.rs 'return self.wait\(taking, &name\).await;' 'return self.poll(taking).await;'
plant cases a_try_takes_no_place request.rs '(fn acquire\(&self, once: bool\) -> Cmd \{)' 'fn acquire(&self, once: bool) -> Cmd { let once = once && self.vote;'
plant cases an_ephemeral_hold_ends request.rs 'if self.ephemeral \{' 'if self.ephemeral && self.vote {'
plant cases 'readers_and a_semaphore' request.rs 'match self.mode \{(\s+Mode::Exclusive => &mut)' 'match Mode::Exclusive { Mode::Exclusive => &mut'
plant cases an_inner_hold renewals.rs 'renewal.ending = !renewal.is_live\(\);' 'renewal.ending = true;'
plant cases a_name_is_of_one_client lock.rs '\[core.process.as_bytes\(\), name, core.suffix.as_bytes\(\)\].concat\(\)' 'name.clone()'
plant cases no_write_after lock.rs 'let mut guarded = cmd\("DLOCK.GUARD"\);\s+guarded.arg\(self.key\(\)\).arg\(self.token\(\)\);' \
    'let mut guarded = redis::Cmd::new();'
plant cases a_refused_keep renewals.rs 'renewal.refusal.as_ref\(\).or\(trouble\)' 'renewal.refusal.as_ref().filter(|_| trouble.is_some_and(|_| false))'
plant cases a_refused_keep take.rs 'if refused \{' 'if refused && false {'
plant cases no_right_to_release renewals.rs 'link.surplus > 1\)' 'link.surplus > 1000)'
plant cases no_right_to_ping link.rs '\.is_err_and\(\|error\| is_broken\(&error\)\) \{(\s+return)' '.is_err() { return'
plant cases closed_without_a_channel core.rs 'state.closed = true;' ''
plant cases a_turn_takes_three take.rs 'taking.once && crowded' 'taking.once && crowded && false'
plant cases a_re_entry_sends_nothing take.rs 'if let Some\(who\) = request.who\(\) \{' 'if let Some(who) = request.who().filter(|_| false) {'
plant cases no_time_out_is_too_long take.rs '\.filter\(\|timeout\| \*timeout < FAR\)' ''
plant cases bad_arguments lock.rs 'invalid\("limit", "must be at least' 'invalid("number", "must be at least'
plant faults locks_that_are_dropped link.rs 'oldest.is_none\(\) && wire.left' 'false && wire.left'
plant faults a_grant_that_is_read_late renewals.rs 'self.node\(at.node\).ensure_running\(\);' ''
plant cases 'a_try_at_a_closed_port a_try_at_a_replica a_try_without_replicas a_try_at_a_busy_server a_try_at_a_loading_server' take.rs 'Err\(error\) if once => \{' 'Err(error) if once && !error.passes() => {'
plant cases a_hold_over_a_busy_server error.rs '\| "BUSY"' ''
plant cases a_wait_at_a_loading_server error.rs '\| "LOADING"' ''
plant faults a_try_finds_the_primary error.rs '"READONLY" \| "CLUSTERDOWN"' '"CLUSTERDOWN"'
plant faults every_node_that_has_answered renewals.rs 'self.known.push\(name.to_owned\(\)\);' ''
plant faults what_hangs_is_asked_for link.rs 'core.overdue\(&wire.node, wire.id\);' 'let _ = core;'
plant faults what_is_still_held_after_a_pause renewals.rs '&& at - end > margin.max\(HUNG\)' '&& at - end > margin.max(HUNG) * 1000'
plant faults a_hold_over_a_slow keep.rs 'state.asking.get\(&id.0\).is_some_and\(\|at\| at == name\)' 'state.asking.contains_key(&id.0) && false'
plant faults a_redirect_without_a_host error.rs '\.filter\(\|_\| address.starts_with\(.:.\)\)' '.filter(|_| false)'
plant faults what_others_publish link.rs '\.filter\(\|number\| \*number > 0\)' ''
plant faults an_observer_that_panics renewals.rs 'catch_unwind\(AssertUnwindSafe\(report\)\).is_err\(\)' \
    '{ report(); catch_unwind(AssertUnwindSafe(|| ())).is_err() }'
plant faults a_server_that_ends_each keep.rs 'sleep\(PAUSE\).await;' 'let _ = (PAUSE, sleep(PAUSE));'
plant faults new_owners_are many.rs 'match request.lock' 'let _ = request.clone().try_lock().await; match request.lock'
plant locks a_named_owner_asks_in_turn renewals.rs 'renewal.ending = !renewal.is_live\(\);' 'renewal.ending = true;'
plant locks an_upgrade_is_refused renewals.rs 'if request.mode.limit\(\) < renewal' 'if request.mode.limit() < 0 * renewal'
plant locks no_two_lead election.rs 'hold.clone\(\).filter\(\|hold\| !hold.left\(\).is_zero\(\)\)' 'hold.clone()'
plant quorum 'quorum_a_majority_is_enough' quorum.rs 'self.votes.len\(\) \/ 2 \+ 1' 'self.votes.len()'
plant quorum 'quorum_a_minority_is_not quorum_is_kept' quorum.rs 'self.votes.len\(\) \/ 2 \+ 1' '1'

rm -r source
[ ${#missed[@]} = 0 ] || { echo "faults that nothing has seen: ${missed[*]}"; exit 1; }
