//! The properties of `crates/testing/src/properties/statement.rs`, for long runs.

#![no_main]

use fencegate_testing::properties::statement as property;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    property::check(input);
});
