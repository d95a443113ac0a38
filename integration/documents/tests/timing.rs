//! Failure detection, lease, quarantine and the time without grants: every default and setting agrees with one table.

use dlock_documents::read;

const ALLOWANCE_S: f64 = 5.0;

/// A row of the table, in seconds.
#[derive(Debug, PartialEq)]
struct Row {
    detection: f64,
    lease: f64,
    quarantine: f64,
    ordinary: (f64, f64),
    worst: f64,
}

impl Row {
    /// Returns None for a line that is no row of the table.
    fn read(line: &str) -> Option<Row> {
        let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
        let [_, detection, lease, quarantine, ordinary, worst] = cells[..] else {
            return None;
        };
        let seconds = |cell: &str| cell.strip_suffix(" s")?.parse().ok();
        let (least, most) = ordinary.split_once(" to ")?;
        Some(Row {
            detection: seconds(detection)?,
            lease: seconds(lease)?,
            quarantine: seconds(quarantine)?,
            ordinary: (least.parse().ok()?, seconds(most)?),
            worst: seconds(worst)?,
        })
    }

    /// Returns the row that follows from a detection and a lease.
    fn of(detection: f64, lease: f64) -> Row {
        let quarantine = lease + ALLOWANCE_S;
        Row {
            detection,
            lease,
            quarantine,
            ordinary: (detection + 1.0, detection + 3.0),
            worst: detection + quarantine + 2.0,
        }
    }
}

fn table() -> Vec<Row> {
    let page = read("docs/guarantees.md");
    let rows: Vec<Row> = page.lines().filter_map(Row::read).collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    rows
}

/// Returns the value of `name = value` or `name value` in a text.
fn value_after(text: &str, name: &str) -> f64 {
    let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("no {name}"));
    let digits = rest.trim_start_matches(|char: char| !char.is_ascii_digit());
    let digits = digits.split(|char: char| !char.is_ascii_digit() && char != '_');
    let digits = digits.into_iter().next().unwrap_or_default();
    let number = digits.replace('_', "").parse();
    number.unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn each_row_follows_from_its_detection_and_lease() {
    for row in table() {
        assert_eq!(row, Row::of(row.detection, row.lease));
    }
}

#[test]
fn a_wrong_row_is_found() {
    let line = "| a | 5 s | 30 s | 30 s | 6 to 8 s | 42 s |";
    let row = Row::read(line).expect("a row");
    assert_ne!(row, Row::of(row.detection, row.lease));
    assert_eq!(Row::read("| a | b | c | d | e | f |"), None);
}

#[test]
fn the_first_row_is_what_is_recommended_and_what_the_group_has() {
    let rows = table();
    let quarantine = rows[0].quarantine * 1000.0;
    let pages = [
        "docs/guarantees.md",
        "docs/waiting.md",
        "packaging/group/group.conf",
    ];
    for page in pages {
        let text = read(page);
        let set = text
            .lines()
            .filter(|line| line.starts_with("dlock.quarantine-ms "));
        let set: Vec<f64> = set
            .map(|line| value_after(line, "dlock.quarantine-ms"))
            .collect();
        assert!(!set.is_empty(), "{page}");
        assert!(set.iter().all(|one| *one == quarantine), "{page}: {set:?}");
    }
    let started = read("packaging/group/start.sh");
    assert_eq!(
        value_after(&started, "${DLOCK_DOWN_MS:-"),
        rows[0].detection * 1000.0
    );
}

/// Default leases: none is longer than the recommended quarantine allows for.
#[test]
fn the_default_leases_are_those_that_the_page_says() {
    let rows = table();
    let settings = read("docs/operations.md");
    let default = value_after(&settings, "| `dlock.default-lease-ms` |");
    assert_eq!(default, rows[0].lease * 1000.0);
    let run = read("clients/cli/src/run.rs");
    let (_, option) = run
        .split_once("value_name = \"TIME\", default_value = \"")
        .expect("-l");
    assert!(
        option.starts_with(&format!("{}s\", value_parser = lease", rows[0].lease)),
        "-l"
    );
    let page = read("docs/guarantees.md");
    let page: Vec<&str> = page.split_whitespace().collect();
    let page = page.join(" ");
    let (_, clients) = page
        .split_once("The clients ask for ")
        .expect("the clients' lease");
    let (clients, rest) = clients.split_once(" s").expect("seconds");
    assert!(rest.contains("a command that names no lease, ask for 30 s"));
    let page = read("docs/clients.md");
    let row = page.lines().find(|line| line.starts_with("| `lease` |"));
    let row = row.expect("the clients' setting");
    assert!(row.contains(&format!("| {clients} s |")), "{row}");
}

/// The last row is the setting of the run of failovers.
#[test]
fn the_measured_row_is_that_of_the_run() {
    let row = &table()[2];
    let lease = value_after(
        &read("evidence/chaos/client.rs"),
        "pub const LEASE_MS: u64 =",
    );
    let detection = value_after(
        &read("evidence/src/group.rs"),
        "pub const DOWN_AFTER_MS: u64 =",
    );
    assert_eq!(
        (row.lease * 1000.0, row.detection * 1000.0),
        (lease, detection)
    );
}
