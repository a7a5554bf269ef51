//! The properties of `crates/testing/src/properties/policy.rs`, for long runs.

#![no_main]

use fencegate_testing::properties::policy as property;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    property::check(input);
});
