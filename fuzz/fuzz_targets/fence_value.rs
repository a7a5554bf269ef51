//! The properties of `crates/testing/src/properties/fence_value.rs`, for long runs.

#![no_main]

use fencegate_testing::properties::fence_value as property;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    property::check(input);
});
