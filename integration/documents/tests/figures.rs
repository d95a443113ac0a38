//! The figures in the pages agree with the results.

use dlock_documents::read;

/// Returns the cells of the row that begins with this text; the first row of a table has its heads.
fn row<'a>(table: &'a str, first: &str) -> Vec<&'a str> {
    let mut rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let row = rows.find(|row| row.starts_with(first));
    let row = row.unwrap_or_else(|| panic!("no row {first:?}"));
    row.trim_end_matches(" |").split(" | ").collect()
}

/// Returns the pairs of the page that the results do not have: `1.08 (Redis 8.6.3)` names a figure and the server of its column.
fn wrong_pairs(page: &str, results: &str) -> Vec<String> {
    let servers = row(results, "|").into_iter();
    let figures = row(results, "a client's pair ∕ `SET` + `DEL`")
        .into_iter()
        .skip(1);
    // The head of the first column is empty.
    let servers = servers.map(|server| server.trim_start_matches(['|', ' ']));
    let mut wrong = Vec::new();
    let mut named = 0;
    for (server, figure) in servers.zip(figures) {
        let median = figure.split(' ').next().unwrap_or_default();
        for (at, _) in page.match_indices(&format!(" ({server})")) {
            named += 1;
            let said = page[..at].rsplit(' ').next().unwrap_or_default();
            if said != median {
                wrong.push(format!("{server}: {said}, not {median}"));
            }
        }
    }
    assert!(named >= 2, "only {named} figures are found");
    wrong
}

#[test]
fn the_readme_says_what_a_pair_costs() {
    let results = read("docs/results/servers.md");
    let readme = read("README.md");
    assert_eq!(wrong_pairs(&readme, &results), [""; 0]);
    let other = readme.replace(" (Redis 7.2.4)", "1 (Redis 7.2.4)");
    assert_eq!(
        wrong_pairs(&other, &results).len(),
        1,
        "a wrong figure is found"
    );
}
