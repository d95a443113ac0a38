#![no_main]

#[path = "../meter.rs"]
mod meter;

use engine::hostile::value;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    meter::bounded(bytes, value::read);
    value::hold(bytes);
});
