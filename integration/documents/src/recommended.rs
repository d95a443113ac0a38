//! The recommended setting, which one page names (`docs/guarantees.md`).

const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");

/// The settings that the recommended setting decides.
pub const DECIDED: [&str; 6] = [
    "rdb-del-sync-files",
    "dlock.max-lease-ms",
    "dlock.replicas",
    "dlock.quarantine-ms",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];

/// Returns the blocks of configuration on a page.
pub fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("\n```")
        .filter_map(|block| block.strip_prefix("conf\n"))
}

/// Returns the recommended setting, with a round trip to a replica, and the older one without.
pub fn recommended() -> [&'static str; 2] {
    let headings = [
        "The recommended setting",
        "The older setting, without a round trip",
    ];
    headings.map(|heading| {
        let section = GUARANTEES.split(&format!("\n## {heading}\n")).nth(1);
        let section = section.and_then(|rest| rest.split("\n## ").next());
        let mut blocks = blocks(section.expect("the section"));
        let block = blocks.next().expect("a setting");
        assert_eq!(blocks.next(), None, "{heading}");
        block
    })
}
