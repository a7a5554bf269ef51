//! The proxy and `fencegate.token` in the database read the same tokens from a value of `lease.fence`.

use super::corpus;
use crate::support::{Options, Postgres, fenced};
use fencegate_fence::value::FenceValue;
use fencegate_testing::dice::Dice;
use std::collections::BTreeSet;

const VALUES: u64 = 6_000;
const RESOURCES: [&str; 8] = ["scheduler", "shard/3", "a", "b", "47", "dev", "v", ""];

#[test]
fn the_database_reads_the_same_tokens() {
    let postgres = Postgres::start(Options::default());
    fenced::init(&postgres, "postgres");
    postgres.sql(
        "CREATE FUNCTION tokens(presented text[], resource text) RETURNS SETOF bigint LANGUAGE plpgsql AS $$ \
         DECLARE value text; BEGIN \
            FOREACH value IN ARRAY presented LOOP \
                PERFORM set_config('lease.fence', value, false); \
                RETURN NEXT fencegate.token(resource); \
            END LOOP; \
         END $$",
    );
    let values = values();
    let literals: Vec<_> = values.iter().map(|(text, _)| format!("'{}'", text.replace('\'', "''"))).collect();
    let literals = literals.join(",");
    for resource in RESOURCES {
        let rows = postgres.sql(&format!("SELECT tokens(ARRAY[{literals}], '{resource}')"));
        assert_eq!(rows.len(), values.len());
        for ((text, value), row) in values.iter().zip(rows) {
            let expected = value.token(resource).map(|token| token.to_string());
            assert_eq!(row, [expected], "{text:?} for {resource:?}");
        }
    }
}

/// Values that the proxy can read. Without such a value, a session cannot write.
fn values() -> Vec<(String, FenceValue)> {
    let corpus = corpus::VALUES.map(str::as_bytes);
    let mut dice = Dice::new(crate::support::seed());
    let texts = std::iter::from_fn(|| Some(String::from_utf8(dice.mutated(&corpus))));
    let mut seen = BTreeSet::new();
    texts
        .flatten()
        .filter(|text| seen.insert(text.clone()))
        .filter_map(|text| FenceValue::parse(&text).ok().map(|value| (text, value)))
        .take(super::share(VALUES))
        .collect()
}
