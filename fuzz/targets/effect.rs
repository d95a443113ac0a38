#![no_main]

#[path = "../meter.rs"]
mod meter;

use engine::hostile::effect;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    meter::bounded(bytes, effect::read);
    effect::hold(bytes);
});
