//! The properties of `crates/testing/src/properties/frame.rs`, for long runs.

#![no_main]

use fencegate_testing::properties::frame as property;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    property::check(input);
});
