//! The steps that each driver takes, in order, and their required results.

use crate::support::Address;
use crate::support::fenced::Fenced;

const SCHEMA: &str = "CREATE TABLE jobs (id int PRIMARY KEY, payload text); \
    CREATE FUNCTION until_asleep() RETURNS void LANGUAGE plpgsql AS $$ BEGIN \
        WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep') LOOP \
            PERFORM pg_stat_clear_snapshot(); \
        END LOOP; END $$";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

/// Steps of every driver. A new leader deletes all rows except 4, which an uncommitted transaction may contain.
const NEEDED: &[(&str, &str)] = &[
    ("token", "1"),
    ("writes", "one"),
    ("is_refused", "LF001 ERROR resource=scheduler presented=1 highest=2"),
    // Prepared statement, batch, COPY.
    ("refusals", "LF001 LF001 LF001"),
    ("aborts", "on"),
    ("goes_on", "three"),
    ("is_cut_off", "LF001 FATAL resource=scheduler presented=2 highest=3 outcome=rolled_back"),
    ("is_interrupted", "LF001 FATAL resource=scheduler presented=3 highest=4 outcome=unknown"),
    ("starts_again", "four"),
];

/// Steps that only some drivers can take: the columns of the table in docs/reference/compatibility.md.
pub const OFFERED: &[(&str, &str)] = &[
    ("prepares", "1045"),
    ("batches", "2045"),
    ("copies", "1499500"),
    ("scrolls", "1499500"),
    ("carries_large_values", "same"),
    ("listens", "tick"),
    ("cancels", "cancelled"),
];

/// Steps that report an error. Their results begin with its class.
const ERRORS: &[&str] = &["is_refused", "is_cut_off", "is_interrupted"];

/// A server with the fenced table `jobs`, and the proxy.
pub struct World(Fenced);

impl World {
    pub fn start() -> Self {
        Self(Fenced::start(SCHEMA, POLICIES))
    }

    pub fn address(&self) -> Address {
        self.0.proxy.address()
    }

    /// The ids of all rows.
    pub fn jobs(&self) -> String {
        self.0.postgres.value("SELECT string_agg(id::text, ' ' ORDER BY id) FROM jobs")
    }
}

/// Output of a driver, with a line `STEP: RESULT` for each step.
#[derive(Debug)]
pub struct Report(Vec<(String, String)>);

impl Report {
    pub fn of(output: &str) -> Self {
        let line = |line: &str| {
            let (step, result) = line.split_once(": ").unwrap_or_else(|| panic!("not a step: {line}"));
            (step.to_owned(), result.to_owned())
        };
        Self(output.lines().map(line).collect())
    }

    pub fn assert_as_expected(&self) {
        for (step, _) in NEEDED {
            assert!(self.result(step).is_some(), "{step} is missing in {:#?}", self.0);
        }
        for (step, result) in self.0.iter().filter(|(step, _)| step != "version") {
            let known = NEEDED.iter().chain(OFFERED).find(|(known, _)| known == step);
            let (_, expected) = known.unwrap_or_else(|| panic!("no such step: {step}"));
            let is_error = ERRORS.contains(&step.as_str());
            let result = if is_error { result.split_once(' ').unwrap_or_default().1 } else { result };
            assert_eq!(result, *expected, "{step} in {:#?}", self.0);
        }
    }

    pub fn result(&self, step: &str) -> Option<&str> {
        self.0.iter().find_map(|(name, result)| (name == step).then_some(result.as_str()))
    }

    /// The class of the error that a step has reported.
    pub fn class(&self, step: &str) -> &str {
        self.result(step).unwrap_or_default().split(' ').next().unwrap_or_default()
    }
}
