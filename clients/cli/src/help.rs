//! What `--help` and the manual page have beyond the options: exit codes and examples. One text, for both.

/// The heading of the options that name a server.
pub(crate) const PLACE: &str = "Where the locks are";

/// Of `dlock`.
pub(crate) const ALL: &str = "\
Exit codes:
  0   Success
  1   who, release: nobody holds the lock
  64  The command line is wrong: the message names the argument
  69  No server can be reached, or it refuses
  run and check have codes of their own: dlock run --help, dlock check --help

Examples:
  dlock who migrations
      Show who holds this lock, and who waits for it
  dlock log migrations
      Show what happened to it that was not ordinary
  dlock release migrations
      End all its holds
  dlock --sentinel one:26379 --sentinel two:26379 --primary dlock top
      Live, wherever the primary is";

/// Of `dlock run`.
pub(crate) const RUN: &str = "\
Exit codes:
  The command's own, or 128 + n if signal n has ended it, except for these:
  1         The lock was not acquired in time (another code by -E)
  64        The command line is wrong: the message names the argument
  69        The server refuses: a wrong password, a missing right, no module. Or no server
            can be reached: with -n at once, with -w at the end of that time. Without
            either, the command waits for the server
  75        The lock was lost while the command ran, which was ended
  126, 127  The command cannot be run; it does not exist. Then dlock does not wait

The command finds DLOCK_LOCK, DLOCK_OWNER and DLOCK_TOKEN in its environment, and in
DLOCK_TOKENS the tokens of all runs above it.

Examples:
  0 * * * *  dlock run -qn --at-least 1min hourly-report -- /usr/local/bin/report
      In crontab, on each of three machines: the first one runs it. --at-least keeps the
      lock for longer than the clocks of the machines differ, else the next one finds it
      free. With -q cron mails nothing
  dlock run -w 5min migrations -- ./migrate up
      Waits for its turn, at most five minutes
  dlock run stock -- sh -c 'redis-cli DLOCK.GUARD $DLOCK_LOCK $DLOCK_TOKEN SET stock 41'
      A write that the server refuses when the lock is lost";

/// Of `dlock log`.
pub(crate) const LOG: &str = "\
The server remembers the last dlock.log-max-len of these (1024), until it is restarted. After a
failover the new primary has what it saw as a replica: holds that ended, but no waits and no
refusals.

Examples:
  dlock log
      The last 20
  dlock log --count 100 migrations
      What happened to this lock";

/// Of `dlock check`.
pub(crate) const CHECK: &str = "\
Exit codes:
  0   Nothing is missing
  1   Something is BAD
  2   Nothing is BAD, but something could not be checked
  3   There are notes only
  69  No server could be reached, or it refused
  With --wait: 0 if all replicas count, 1 if they did not in time

Examples:
  dlock check --wait --url redis://primary && redis-cli -h replica SHUTDOWN
      Goes on when all replicas count
  dlock check --sentinel one:26379 --sentinel two:26379 --sentinel three:26379 --primary dlock
      A group, with its Sentinels
  sudo dlock check
      On the machine of a server: also reads its configuration file";

/// Returns the same text for man(1).
pub(crate) fn roff(text: &str) -> String {
    let mut page = String::new();
    let mut is_plain = true;
    for line in text.lines() {
        let words = line.trim_start();
        let depth = line.len() - words.len();
        let words = words
            .replace('\\', "\\e")
            .replace('-', "\\-")
            .replace('\'', "\\(aq");
        match (depth, line.strip_suffix(':')) {
            _ if words.is_empty() => page += ".PP\n",
            (0, Some(title)) => page += &format!(".SS {title}\n"),
            (0, None) => page += &format!("{words}\n"),
            (2, _) => match words.split_once("  ") {
                // A code, or several, and their meaning.
                Some((term, rest))
                    if term.chars().all(|c| c.is_ascii_digit() || ", ".contains(c)) =>
                {
                    page += &format!(".TP\n{term}\n{}\n", rest.trim_start());
                }
                _ => page += &format!(".TP\n{words}\n"),
            },
            _ => page += &format!("{words}\n"),
        }
        is_plain &= !words.starts_with('.');
    }
    debug_assert!(is_plain, "a line that begins with a dot is a request");
    page
}
