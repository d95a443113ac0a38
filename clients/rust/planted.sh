#!/usr/bin/env bash
# Each case fails on a client with a fault: a case that nothing fails proves nothing. `planted.sh PROJECT`, where run.sh has unpacked
# the crate: a fault is put into its source, and taken back.
set -euo pipefail
cd "$1"
crate=dlock-redis-0.3.0/src
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
plant cases closed_without_bound take.rs 'tracing::warn!\("still waiting' 'tracing::trace!("quietly'
plant cases 'silent_path two_dead_links_of_five one_hung_node_of_three' ties.rs 'if end <= now\(\)' 'if end.is_zero()' # no clock
plant cases 'slow_path' settings.rs '\[10, 60, 5, 3\].map\(Duration::from_secs\)' '[10000, 60000, 5000, 150].map(Duration::from_millis)'
plant cases 'wrong_password no_right_to_the_command no_module' error.rs 'pub\(crate\) fn passes\(&self\) -> bool \{' \
    'pub(crate) fn passes(&self) -> bool { if matches!(self, Error::Redis(_)) { return true; }'
plant cases no_channel take.rs 'self.block\(taking, &name\).await' 'self.queue(taking, &name).await'
plant cases 'two_thousand_holds_at_200_ms cut_and_kept the_replica_frozen' keep.rs \
    'async fn round\(self: &Arc<Self>, name: &str\) -> Result<\(\)> \{' \
    'async fn round(self: &Arc<Self>, name: &str) -> Result<()> { if name.len() < 99 { return Ok(()); }' # keeps nothing
plant cases a_hold_that_may_not_last ties.rs 'book.short = left < settings.near\(\);' 'let _ = settings.near();'
plant cases 'forced deleted expired' ties.rs 'let told = if let Value::Array\(lost\) = lost \{ Some\(lost\) \} else \{ None \};' \
    'static NONE: Vec<Value> = Vec::new(); let (told, ties) = (Some(&NONE), ties.max(book.ties)); let _ = lost;'
plant cases 'cut_wait' state.rs 'for sender in self.waits.values\(\).flatten\(\) \{' 'for sender in self.waits.values().flatten().take(0) {'
plant cases after_close core.rs 'state.lose_all\("closed", \|_\| true\)' '0' # ends quietly
plant cases a_thousand_cycles core.rs 'state.node\(name\).link.replace\(link.clone\(\)\).filter\(\|before\| !before.is_dead\(\)\)' \
    '{ std::mem::forget(link.clone()); None }' # a link a lock
plant cases a_time_out_leaves_no_place take.rs 'self.core.leave\(&self.want, &name\);' '' # its claim keeps the place
plant cases dropped lock.rs 'self.core.drop_hold\(&self.shared\);' ''
plant cases bad_arguments lock.rs 'invalid\("limit", "must be at least' 'invalid("number", "must be at least'
plant faults locks_that_are_dropped link.rs 'if !open && flying.is_empty\(\)' 'if false'
plant faults a_grant_that_is_read_late ties.rs 'self.node\(&at.node\).wake\(\);' ''
plant faults after_the_close take.rs 'self.check\(\)\?;(\s+if end.is_some_and)' 'if end.is_some_and'
plant faults a_re_entry_that_is_left leave.rs 'Ok\(1..\) => \{\}' 'Ok(u64::MAX) => {}'
plant faults what_is_left keep.rs 'if target == name' 'if target.is_empty()'
plant faults a_hold_over_a_slow ties.rs 'tie.asking = asking;' ''
plant faults a_key_that_nobody_serves leave.rs 'if error.is_read_only\(\) \|\| !error.is_said\(\) \{' '{'
plant faults a_redirect_without_a_host error.rs '\.filter\(\|_\| address.starts_with\(.:.\)\)' '.filter(|_| false)'
plant faults who_may_not_ping link.rs '\.is_err_and\(\|error\| is_broken\(&error\)\) \{(\s+return)' '.is_err() { return'
plant faults what_others_publish link.rs '\.filter\(\|number\| \*number > 0\)' ''
plant faults a_wait_that_blocks core.rs 'self.ended.send_replace\(true\);' ''
plant faults an_observer_that_panics ties.rs 'catch_unwind\(AssertUnwindSafe\(tell\)\).is_err\(\)' \
    '{ tell(); catch_unwind(AssertUnwindSafe(|| ())).is_err() }'
plant faults no_time_out_is_too_long take.rs '\.filter\(\|timeout\| \*timeout < FAR\)\.map\(\|timeout\| began \+ timeout\)' \
    '.and_then(|timeout| began.checked_add(timeout.max(FAR.min(timeout))))'
plant faults a_server_that_ends_each keep.rs 'sleep\(PAUSE\).await;' 'let _ = (PAUSE, sleep(PAUSE));'
plant faults new_owners many.rs 'new_owner\(owner.clone\(\)\)' 'owner(&owner)'
plant locks no_two_lead leader.rs 'hold.clone\(\).filter\(\|hold\| !hold.left\(\).is_zero\(\)\)' 'hold.clone()'
plant quorum 'quorum_a_majority_is_enough' quorum.rs 'self.votes.len\(\) \/ 2 \+ 1' 'self.votes.len()'
plant quorum 'quorum_a_minority_is_not quorum_is_kept' quorum.rs 'self.votes.len\(\) \/ 2 \+ 1' '1'

rm -r source
[ ${#missed[@]} = 0 ] || { echo "faults that nothing has seen: ${missed[*]}"; exit 1; }
