#![no_main]

use engine::hostile::words;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| words::hold(bytes));
