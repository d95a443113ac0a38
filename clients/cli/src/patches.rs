//! Which releases of the servers have the fix for the fault that a module which blocks clients comes by.

/// A use after free where the server wakes a blocked client. It came with Redis 7.2, from which Valkey inherited it.
pub(crate) const FAULT: &str = "CVE-2026-23479";

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    Redis,
    Valkey,
}

impl Product {
    fn name(self) -> &'static str {
        match self {
            Product::Redis => "Redis",
            Product::Valkey => "Valkey",
        }
    }
}

/// What is known of a release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Fixed,
    /// No later release of its series either.
    Unsupported,
    /// This release has the fix.
    FixedIn(String),
    Unknown,
}

/// The first release of each series that has the fix, oldest series first.
const FIXED: [(Product, [u32; 3]); 9] = [
    (Product::Redis, [7, 2, 14]),
    (Product::Redis, [7, 4, 9]),
    (Product::Redis, [8, 2, 6]),
    (Product::Redis, [8, 4, 3]),
    (Product::Redis, [8, 6, 3]),
    (Product::Valkey, [8, 0, 8]),
    (Product::Valkey, [8, 1, 7]),
    (Product::Valkey, [9, 0, 4]),
    (Product::Valkey, [9, 1, 0]),
];

/// Returns what is known of a release, `8.0.2`.
pub(crate) fn level(product: Product, version: &str) -> Level {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Level::Unknown;
    };
    let release = [major, minor, patch];
    let series = |[major, minor, _]: [u32; 3]| [major, minor];
    let all = || {
        FIXED
            .iter()
            .filter(|(of, _)| *of == product)
            .map(|(_, fixed)| *fixed)
    };
    if let Some(fixed) = all().find(|fixed| series(*fixed) == series(release)) {
        return match release >= fixed {
            true => Level::Fixed,
            false => Level::FixedIn(shown(product, fixed)),
        };
    }
    if product == Product::Redis && [major, minor] < [7, 2] {
        return Level::Unsupported;
    }
    // A series without a fix: that of the next one is the first that helps. All series after the last one contain the fix.
    match all().find(|fixed| *fixed > release) {
        Some(next) => Level::FixedIn(shown(product, next)),
        None => Level::Fixed,
    }
}

fn shown(product: Product, [major, minor, patch]: [u32; 3]) -> String {
    format!("{} {major}.{minor}.{patch}", product.name())
}

/// The product and version that `INFO server` tells. (Valkey calls itself Redis 7.2.4 as well, for the sake of old clients.)
pub(crate) fn product<'i>(of: impl Fn(&str) -> Option<&'i str>) -> Option<(Product, &'i str)> {
    match of("valkey_version") {
        Some(version) => Some((Product::Valkey, version)),
        None => of("redis_version").map(|version| (Product::Redis, version)),
    }
}
