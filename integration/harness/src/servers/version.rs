//! The version of a server.

use std::fmt;

/// The product: Redis or Valkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Redis.
    Redis,
    /// Valkey, which calls itself Redis 7.2.4 for the sake of old clients.
    Valkey,
}

/// A server's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Redis or Valkey.
    pub product: Product,
    /// 7 in 7.0.15.
    pub major: u32,
    /// 0 in 7.0.15.
    pub minor: u32,
    /// 15 in 7.0.15.
    pub patch: u32,
}

impl Version {
    /// Reads `7.0.15`.
    pub(super) fn parse(product: Product, text: &str) -> Option<Version> {
        let mut parts = text.trim().split('.').map(|part| part.parse().ok());
        Some(Version {
            product,
            major: parts.next()??,
            minor: parts.next()??,
            patch: parts.next().flatten().unwrap_or(0),
        })
    }

    /// Reads the output of `redis-server --version`: `Redis server v=7.0.15 sha=…`.
    pub(super) fn parse_banner(text: &str) -> Option<Version> {
        let product = if text.starts_with("Valkey") {
            Product::Valkey
        } else {
            Product::Redis
        };
        let version = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix("v="))?;
        Version::parse(product, version)
    }

    /// Returns true for Redis of at least `major.minor`.
    pub fn is_redis(&self, major: u32, minor: u32) -> bool {
        self.product == Product::Redis && (self.major, self.minor) >= (major, minor)
    }

    /// Returns true for Valkey of at least `major.minor`.
    pub fn is_valkey(&self, major: u32, minor: u32) -> bool {
        self.product == Product::Valkey && (self.major, self.minor) >= (major, minor)
    }

    /// Returns true if the server has the features of Redis `major.minor`. Valkey branched off at 7.2, so it has those of 7.2 and
    /// none that came to Redis later.
    pub fn has_redis_api(&self, major: u32, minor: u32) -> bool {
        match self.product {
            Product::Redis => (self.major, self.minor) >= (major, minor),
            Product::Valkey => (7, 2) >= (major, minor),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = match self.product {
            Product::Redis => "Redis",
            Product::Valkey => "Valkey",
        };
        write!(f, "{product} {}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banners_are_understood() {
        let check = |text: &str, product, major, minor, patch| {
            assert_eq!(
                Version::parse_banner(text),
                Some(Version {
                    product,
                    major,
                    minor,
                    patch
                }),
                "{text}"
            );
        };
        check(
            "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0",
            Product::Redis,
            7,
            0,
            15,
        );
        check(
            "Valkey server v=8.1.8 sha=00000000:1 malloc=libc bits=64",
            Product::Valkey,
            8,
            1,
            8,
        );
        assert_eq!(Version::parse_banner("no version here"), None);
    }

    #[test]
    fn valkey_has_the_api_of_redis_7_2() {
        let valkey = Version {
            product: Product::Valkey,
            major: 9,
            minor: 1,
            patch: 0,
        };
        assert!(valkey.has_redis_api(7, 2) && !valkey.has_redis_api(7, 4));
        assert!(valkey.is_valkey(8, 0) && !valkey.is_redis(7, 0));
    }
}
