//! The properties of `tests/behaviour/decoders/properties/fence_value.rs`, for long runs.

#![no_main]

#[path = "../../tests/behaviour/decoders/properties/fence_value.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    property::check(input);
});
