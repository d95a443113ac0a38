//! The version of the module, for people and as the number that `MODULE LIST` shows.

/// The version as people read it. That of a development build ends with its commit: `make` passes it to the compiler.
pub(crate) const TEXT: &str = match option_env!("DLOCK_VERSION") {
    Some(text) => text,
    None => env!("CARGO_PKG_VERSION"),
};

/// The version as a number.
///
/// 400 is 0.4.0, with two digits a part. A development build has the bit of 2^30, then its major version from bit 26 on, its minor
/// version from bit 20 on, and the first five hexadecimal digits of its commit (0 if `make` did not build it). So nodes with builds
/// of different commits differ in `MODULE LIST`. `shown` in clients/cli/src/check.rs reads it.
pub(crate) const NUMBER: i32 = {
    let major = number(env!("CARGO_PKG_VERSION_MAJOR").as_bytes(), 10);
    let minor = number(env!("CARGO_PKG_VERSION_MINOR").as_bytes(), 10);
    let patch = number(env!("CARGO_PKG_VERSION_PATCH").as_bytes(), 10);
    if env!("CARGO_PKG_VERSION_PRE").is_empty() {
        assert!(minor < 100 && patch < 100);
        major * 10_000 + minor * 100 + patch
    } else {
        assert!(major < 16 && minor < 64 && patch == 0);
        1 << 30 | major << 26 | minor << 20 | number(commit(TEXT), 16)
    }
};

/// Returns the first five digits of the commit, which stand behind the `+` of a version; 0 without one.
const fn commit(text: &str) -> &[u8] {
    let mut rest = text.as_bytes();
    while let Some((&byte, others)) = rest.split_first() {
        rest = others;
        if byte == b'+' && rest.len() >= 5 {
            return rest.split_at(5).0;
        }
    }
    b"0"
}

/// Reads digits to a base.
const fn number(digits: &[u8], base: u32) -> i32 {
    let Ok(digits) = std::str::from_utf8(digits) else {
        panic!("a version is text");
    };
    match i32::from_str_radix(digits, base) {
        Ok(number) => number,
        Err(_) => panic!("a part of the version is not a number"),
    }
}
