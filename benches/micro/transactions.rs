//! The state machine of one session, with a server that is only bytes. Compiled only for the micro-benchmarks.
//!
//! Owns the session's host, which knows the catalog and permits every write to which the session is admitted. Must
//! never do work that the real host does not do, because that work would be measured too.

use bytes::{BufMut, BytesMut};
use fencegate_catalog::Catalog;
use fencegate_fence::Claim;
use fencegate_fence::session::{Epoch, IdentityError, SessionFence, Token};
use fencegate_policy::{PolicySet, Resource, join};
use fencegate_session::host::{CatalogRequest, CatalogView, Changes};
use fencegate_session::judge::{Need, PassedWrite};
use fencegate_session::parameter::{Parameter, ParameterValue};
use fencegate_session::path::Path;
use fencegate_session::pending_definitions::PendingDefinitions;
use fencegate_session::rejection::Rejection;
use fencegate_session::task::{ParsePermit, Room};
use fencegate_session::{Host, Session, Settings, Side, Step, Task};
use fencegate_statement::{Analysis, Cache, Encoding, Lexing, ServerEncoding, Statement};
use fencegate_wire::frame::put_frame;
use fencegate_wire::message::{Status, put_execute, put_parse, put_query, put_ready, put_sync};
use fencegate_wire::tag::{backend, frontend};
use std::sync::Arc;
use std::time::Instant;

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.accounts]}\n";
const TEXTS: [&str; 2] =
    ["SELECT balance FROM accounts WHERE id = $1", "UPDATE accounts SET balance = 1 WHERE id = $1"];

/// The lexing of almost all sessions.
pub const LEXING: Lexing = Lexing {
    standard_conforming_strings: true,
    encoding: Encoding::Utf8,
    server: ServerEncoding::Utf8,
    release: Lexing::NEWEST,
};

/// The action of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// Reads a fenced table.
    Read,
    /// Writes a fenced table.
    Write,
}

/// An admitted session, with a prepared statement of each kind.
pub struct Transactions {
    session: Session<OneSession>,
    /// Server answers: to a prepared read, to a prepared write, and to both as simple queries.
    answers: [BytesMut; 4],
    value: u32,
    now: Instant,
}

impl Transactions {
    /// The session before its first transaction.
    pub fn new() -> Self {
        let policies = join([("a.yaml".into(), Ok(POLICIES.into()))]).expect("valid policies");
        let tables = policies.resources.iter().map(|resource| resource.tables[0].name.clone());
        let catalog = Arc::new(Catalog::of_tables(tables));
        let fence = Arc::new(SessionFence::new(Err(IdentityError::NoAnswer)));
        let host = OneSession { policies, catalog, fence, cache: Cache::default() };
        let started = Settings {
            replicates: false,
            temporary: None,
            parameter: Parameter::new(ParameterValue::read(Some("47"))),
            path: Path::new(Some("public"), false),
            lexing: LEXING,
            reported: None,
        };
        let now = Instant::now();
        let session = Session::new(host, Side::default(), Side::default(), started, now);
        assert!(session.fence().record_admission("scheduler", Epoch { generation: 1, token: 47 }, 0));
        let answers = [(Does::Read, true), (Does::Write, true), (Does::Read, false), (Does::Write, false)].map(answer);
        let mut transactions = Transactions { session, answers, value: 0, now };
        for (name, text) in ["r", "w"].into_iter().zip(TEXTS) {
            put_parse(&mut transactions.session.client.input, name, text);
            put_sync(&mut transactions.session.client.input);
            let mut answer = BytesMut::new();
            put_frame(&mut answer, backend::PARSE_COMPLETE, |_| {});
            put_ready(&mut answer, Status::Idle);
            transactions.exchange(&answer);
        }
        transactions
    }

    /// Executes a prepared statement with a value, as libpq does, and handles the answer.
    pub fn prepared(&mut self, does: Does) {
        let name = [b"r\0", b"w\0"][does as usize];
        let input = &mut self.session.client.input;
        put_frame(input, frontend::BIND, |out| {
            out.put_u8(0);
            out.put_slice(name);
            out.put_slice(&[0, 0, 0, 1, 0, 0, 0, 5]);
            out.put_slice(b"00001");
            out.put_slice(&[0, 1, 0, 0]);
        });
        put_frame(input, frontend::DESCRIBE, |out| out.put_slice(b"P\0"));
        put_execute(input, "");
        put_sync(input);
        self.exchange_for(does as usize);
    }

    /// Runs a text with a different literal each time, and handles the answer.
    pub fn simple(&mut self, does: Does) {
        self.value = (self.value + 1) % 100_000;
        let (before, _) = TEXTS[does as usize].split_at(TEXTS[does as usize].len() - "$1".len());
        let value = format!("{:05}", self.value);
        put_query(&mut self.session.client.input, &[before.as_bytes(), value.as_bytes()]);
        self.exchange_for(2 + does as usize);
    }

    fn exchange_for(&mut self, number: usize) {
        let answer = std::mem::take(&mut self.answers[number]);
        self.exchange(&answer);
        self.answers[number] = answer;
    }

    /// Lets the session handle the client's input, and then this answer.
    fn exchange(&mut self, answer: &[u8]) {
        self.settle();
        assert!(!self.session.server.output.is_empty(), "nothing was forwarded");
        self.session.server.output.clear();
        self.session.server.input.extend_from_slice(answer);
        self.settle();
        assert_eq!(self.session.client.output.len(), answer.len(), "the answer was not forwarded");
        self.session.client.output.clear();
    }

    fn settle(&mut self) {
        loop {
            match self.session.step(self.now) {
                Ok(Step::Wait) => return,
                Ok(Step::GoOn) => {}
                Ok(Step::Do(_)) => panic!("the session requests a task"),
                Err(end) => panic!("{end}"),
            }
        }
    }
}

impl Default for Transactions {
    fn default() -> Self {
        Self::new()
    }
}

/// The server's answer for one row.
fn answer((does, is_prepared): (Does, bool)) -> BytesMut {
    let mut answer = BytesMut::new();
    if is_prepared {
        put_frame(&mut answer, backend::BIND_COMPLETE, |_| {});
    }
    match does {
        Does::Read => {
            let column = b"\0\x01balance\0\0\0\x40\0\0\x02\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0";
            put_frame(&mut answer, backend::ROW_DESCRIPTION, |out| out.put_slice(column));
            put_frame(&mut answer, backend::DATA_ROW, |out| out.put_slice(&[0, 1, 0, 0, 0, 1, b'0']));
        }
        Does::Write if is_prepared => put_frame(&mut answer, backend::NO_DATA, |_| {}),
        Does::Write => {}
    }
    let tag: &[u8] = if matches!(does, Does::Read) { b"SELECT 1\0" } else { b"UPDATE 1\0" };
    put_frame(&mut answer, backend::COMMAND_COMPLETE, |out| out.put_slice(tag));
    put_ready(&mut answer, Status::Idle);
    answer
}

struct OneSession {
    policies: PolicySet,
    catalog: Arc<Catalog>,
    fence: Arc<SessionFence>,
    cache: Cache,
}

impl Host for OneSession {
    fn user(&self) -> &str {
        "postgres"
    }

    fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    fn adopt_policies(&mut self) -> bool {
        false
    }

    fn is_fenced(&self) -> bool {
        true
    }

    fn policies(&self) -> &PolicySet {
        &self.policies
    }

    fn known_stale(&self, _: &str, _: Token) -> Option<Epoch> {
        None
    }

    fn release(&self) {}

    fn catalog(&self, _: Option<&CatalogRequest>) -> CatalogView {
        CatalogView { catalog: self.catalog.clone(), is_current: true, ..CatalogView::default() }
    }

    fn changes(&self) -> Changes {
        Changes::default()
    }

    fn is_unread(&self, _: &CatalogRequest) -> bool {
        false
    }

    fn forget_catalog(&self) {}

    fn catalog_changed(&self) {}

    fn note_harmless_change(&self, _: u64) -> bool {
        true
    }

    fn forget_database(&self, _: &str) {}

    fn definitions_of_others(&self) -> Vec<Arc<PendingDefinitions>> {
        Vec::new()
    }

    fn publish_definitions(&self, _: &PendingDefinitions) {}

    fn withdraw_definitions(&self) {}

    fn read(&self, text: &[u8], lexing: Lexing, with_rows: bool, _: Option<ParsePermit>) -> Result<Analysis, Task> {
        self.cache.get(text, lexing, with_rows).ok_or(Task::ParsePermit { out_of_process: false })
    }

    fn room(&self, _: usize, _: usize, _: bool) -> Option<Room> {
        None
    }

    fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    fn note_query(&self) {}

    fn note_presented(&self, _: &ParameterValue) {}

    fn note_application_name(&self, _: &str) {}

    fn note_admitted(&mut self, _: &Resource) {}

    fn note_rejected(&self, _: &Rejection, _: &Statement) {}

    fn note_passed(&self, _: Vec<PassedWrite>) {}

    fn observe(&self, _: Need, _: Claim) {}
}
