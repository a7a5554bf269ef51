//! The properties of `crates/testing/src/properties/tokens.rs`, for long runs.

#![no_main]

use fencegate_testing::properties::tokens as property;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    property::check(input);
});
