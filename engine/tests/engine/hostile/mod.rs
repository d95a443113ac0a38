//! Properties that hold for any bytes: as a client's arguments, as an effect, as a stored value.
//!
//! Each property is a function that takes bytes and panics when it does not hold. `fuzz/` searches for such bytes with a fuzzer
//! (`make fuzz`); the tests here try the fuzzer's seeds, and mangled forms of them.

pub mod effect;
mod story;
pub mod value;
pub mod words;

use crate::random::{for_seeds, Random};
use std::fs;
use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;

/// Returns the fuzzer's seeds for a target, by name, in a fixed order.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/seeds")
        .join(target);
    let mut seeds: Vec<_> = fs::read_dir(&directory)
        .expect("the target has seeds")
        .map(|entry| entry.expect("a directory can be read").path())
        .map(|path| {
            let name = path.display().to_string();
            (name, fs::read(path).expect("a seed can be read"))
        })
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{target} has no seed");
    seeds
}

/// Tries a property with every seed of its target, then with mangled ones.
fn check(target: &str, property: fn(&[u8])) {
    let seeds = seeds(target);
    for (name, bytes) in &seeds {
        if let Err(panic) = catch_unwind(|| property(bytes)) {
            eprintln!("{name} breaks the property");
            resume_unwind(panic);
        }
    }
    for_seeds(200, |seed| {
        let mut random = Random::new(seed);
        let mut bytes = random.pick(&seeds).1.clone();
        crate::bytes::mutate(&mut random, &mut bytes);
        catch_unwind(|| property(&bytes))
            .map_err(|_| format!("{:?}", String::from_utf8_lossy(&bytes)))
    });
}

#[test]
fn any_words() {
    check("words", words::hold);
}

#[test]
fn any_effect() {
    check("effect", effect::hold);
}

#[test]
fn any_value() {
    check("value", value::hold);
}
