//! A fenced server behind the proxy, with one bystander session.

use crate::support::fenced::{Fenced, ok, value};
use crate::support::{DEADLINE, Frame, Options, ProxyOptions, Wire, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (n int); CREATE TABLE own (n int); \
    CREATE FUNCTION run_tick() RETURNS int LANGUAGE sql AS 'INSERT INTO jobs VALUES (1) RETURNING 1'";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs], functions: [public.run_tick]}\n\
    databases: [postgres]\n";
pub const WRITE: &str = "INSERT INTO jobs VALUES (1)";

/// `application_name` of hostile sessions.
const HOSTILE: &str = "hostile";

pub struct World {
    bystander: Wire,
    pub fenced: Fenced,
    questions: usize,
    memory: u64,
}

impl World {
    /// A world whose highest token is 100.
    pub fn new() -> Self {
        Self::with(Options::default(), ProxyOptions::default())
    }

    pub fn with(options: Options, proxy: ProxyOptions) -> Self {
        let fenced = Fenced::start_with(options, SCHEMA, &proxy.policies(POLICIES));
        let mut bystander = fenced.holder(100);
        ok(&mut bystander, "DELETE FROM jobs");
        (0..100).for_each(|_| drop(ok(&mut bystander, "SELECT repeat('x', 10000)")));
        let memory = fenced.proxy.peak_memory();
        Self { bystander, fenced, questions: 0, memory }
    }

    /// A session with a stale token, which may not write to the fenced table.
    pub fn hostile(&self) -> Wire {
        self.hostile_in("postgres")
    }

    pub fn hostile_in(&self, database: &str) -> Wire {
        let mut wire = Wire::connect(&self.fenced.proxy.address()).unwrap();
        let parameters = [("user", "postgres"), ("database", database), ("application_name", HOSTILE)];
        wire.start(&[&parameters[..], &[("lease.fence", "47")]].concat(), "");
        wire
    }

    /// Asserts that the bystander's session continues and writes, and that a new session can start.
    #[track_caller]
    pub fn is_unharmed(&mut self) {
        self.questions += 1;
        let expected = self.questions.to_string();
        let insert = format!("INSERT INTO own VALUES ({expected}) RETURNING n");
        assert_eq!(value(&mut self.bystander, &insert), Some(expected.clone()));
        assert_eq!(value(&mut self.bystander, "SELECT count(*) FROM own"), Some(expected));
        assert_eq!(value(&mut self.fenced.login(), "SELECT 'new'").as_deref(), Some("new"));
    }

    /// Asserts that nothing passed the fence and that no hostile session remains.
    #[track_caller]
    pub fn ends_well(mut self, allowed_memory: u64) {
        self.is_unharmed();
        let left = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{HOSTILE}'");
        wait_until("the server's sessions have ended", DEADLINE, || self.fenced.postgres.value(&left) == "0");
        assert_eq!(self.fenced.postgres.value("SELECT count(*) FROM jobs"), "0");
        self.is_within_memory(allowed_memory);
    }

    /// Asserts that the proxy has grown by less than this many KiB since the start.
    #[track_caller]
    pub fn is_within_memory(&self, allowed: u64) {
        let grown = self.fenced.proxy.peak_memory().saturating_sub(self.memory);
        println!("the proxy grew by {grown} KiB");
        assert!(grown < allowed, "the proxy grew by {grown} KiB");
    }
}

/// SQLSTATEs of all errors, in order.
pub fn codes(frames: &[Frame]) -> Vec<String> {
    frames.iter().filter(|frame| frame.tag == b'E').map(|frame| frame.fields().code().to_owned()).collect()
}
