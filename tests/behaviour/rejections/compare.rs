//! Runs one cell of the matrix on the server and on the proxy, and compares the results.

use crate::rejections::conversation::{Step, converse};
use crate::rejections::rejected::{NOT_PREPARED, Rejected};
use crate::rejections::shapes::{Scene, Shape};
use crate::rejections::states::State;
use crate::support::fenced::{Fenced, ok};
use crate::support::message::query;
use crate::support::wire::{Fields, exact};
use crate::support::{Address, Frame, Wire};
use std::cell::RefCell;

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE notes (note text); \
    CREATE PROCEDURE work() LANGUAGE sql AS 'INSERT INTO jobs VALUES (1)'; \
    CREATE FUNCTION tick(n int) RETURNS int LANGUAGE sql AS 'SELECT n'";
const POLICIES: &str =
    "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs], functions: [public.tick]}\n";

const DIVISION_BY_ZERO: &str = "22012";
const PROTOCOL_VIOLATION: &str = "08P01";

/// A server, its proxy, and the sessions that observe commits.
pub struct World {
    pub fenced: Fenced,
    auditor: RefCell<Wire>,
    auditor_of_plain: RefCell<Wire>,
}

/// Responses on one side, and the notes that were committed.
type Outcome = (Vec<Frame>, Vec<Option<String>>);

impl World {
    pub fn start() -> Self {
        let fenced = Fenced::start(SCHEMA, POLICIES);
        fenced.postgres.sql("CREATE DATABASE plain");
        fenced.postgres.sql_in("plain", SCHEMA);
        let auditor = |database| RefCell::new(Wire::login(&fenced.postgres.socket(), "postgres", database));
        let (auditor, auditor_of_plain) = (auditor("postgres"), auditor("plain"));
        Self { fenced, auditor, auditor_of_plain }
    }

    /// Raises the highest token.
    pub fn raise(&self, token: i64) {
        ok(&mut self.fenced.holder(token), "DELETE FROM jobs");
    }

    /// Describes the difference, if any.
    pub fn compare(&self, rejected: &Rejected, state: &State, shape: &Shape) -> Result<(), String> {
        let steps = |statement| {
            let scene = Scene { prefix: state.prefix, failed: state.failed, rejected, statement };
            [(state.enter)(), (shape.steps)(&scene), (state.leave)()].concat()
        };
        let postgres = &self.fenced.postgres;
        let direct = self.run(&postgres.address(), rejected, &steps(rejected.reference));
        let proxied = self.run(&self.fenced.proxy.address(), rejected, &steps(rejected.statement));
        let is_reached = !state.failed && !state.copying && (state.is_block || !shape.needs_block);
        difference(rejected, is_reached, &direct, &proxied)
    }

    fn run(&self, address: &Address, rejected: &Rejected, steps: &[Step]) -> Outcome {
        let mut wire = Wire::login(address, "postgres", rejected.database);
        ok(&mut wire, rejected.setup);
        // COMMIT rolls back a failed transaction. Without a transaction, it causes a warning.
        let end = ["COMMIT", "SELECT 'alive'; SELECT name FROM pg_prepared_statements; SELECT name FROM pg_cursors"];
        let end = end.map(|text| Step::Ready(query(text), 1));
        let frames = converse(&mut wire, &[steps, &end].concat());
        (frames, self.take_notes(rejected.database))
    }

    /// The activity of the sessions on both sides.
    pub fn situation(&self) -> String {
        let (server, proxy) = (self.fenced.postgres.socket(), self.fenced.proxy.address());
        let shown = std::thread::scope(|scope| {
            let ask = |address, database, sql| {
                scope
                    .spawn(move || Wire::login(address, "postgres", database).rows(sql))
                    .join()
                    .map_err(|_| "no answer")
            };
            let activity = "SELECT pid, application_name, state, wait_event, query FROM pg_stat_activity";
            [ask(&server, "postgres", activity), ask(&proxy, "fencegate", "SHOW SESSIONS")]
        });
        format!("pg_stat_activity: {:#?}\nSHOW SESSIONS: {:#?}\nlog:\n{}", shown[0], shown[1], self.fenced.proxy.log())
    }

    /// Removes and returns the committed rows. The fenced table must have none.
    pub fn take_notes(&self, database: &str) -> Vec<Option<String>> {
        let auditor = if database == "plain" { &self.auditor_of_plain } else { &self.auditor };
        let take = "DELETE FROM jobs RETURNING n::text; DELETE FROM notes RETURNING note";
        // Rows are returned in physical order, and deleted rows leave space that is reused.
        let mut notes: Vec<_> = ok(&mut auditor.borrow_mut(), take).into_iter().flatten().collect();
        notes.sort();
        notes
    }
}

fn difference(rejected: &Rejected, is_reached: bool, direct: &Outcome, proxied: &Outcome) -> Result<(), String> {
    let shown = || format!("direct: {:#?}\nproxied: {:#?}", direct, proxied);
    if masked(&direct.0) != masked(&proxied.0) {
        return Err(format!("the messages differ\n{}", shown()));
    }
    if direct.1 != proxied.1 || proxied.1.iter().flatten().any(|note| !note.starts_with("kept") && note != "copied") {
        return Err(format!("what was committed differs\n{}", shown()));
    }
    let errors = |frames: &[Frame]| -> Vec<Fields> {
        frames.iter().filter(|frame| frame.tag == b'E').map(Frame::fields).collect()
    };
    let (expected, errors) = (errors(&direct.0), errors(&proxied.0));
    if is_reached && !expected.iter().any(|error| is_reference(error.code())) {
        return Err(format!("the server does not fail\n{}", shown()));
    }
    for (expected, error) in expected.iter().zip(&errors) {
        if is_reference(expected.code()) {
            check_words(rejected, error)?;
        }
    }
    Ok(())
}

/// True for the error of the reference statement.
fn is_reference(code: &str) -> bool {
    [DIVISION_BY_ZERO, NOT_PREPARED].contains(&code)
}

/// The transcript. Errors that the proxy replaces by its own are reduced to their severity.
pub fn masked(frames: &[Frame]) -> Vec<Frame> {
    let reduce = |frame: Frame| {
        if frame.tag != b'E' {
            return frame;
        }
        let fields = frame.fields();
        let body = match fields.code() {
            code if is_reference(code) || code.starts_with("LF") => fields.severity().as_bytes().to_vec(),
            // The text names the type of the received message, which may be one of the proxy's own.
            PROTOCOL_VIOLATION if fields.message().starts_with("unexpected message type") => {
                PROTOCOL_VIOLATION.as_bytes().to_vec()
            }
            _ => frame.body,
        };
        Frame { tag: b'E', body }
    };
    exact(frames).into_iter().map(reduce).collect()
}

fn check_words(rejected: &Rejected, error: &Fields) -> Result<(), String> {
    if (error.code(), error.detail()) != (rejected.code, rejected.detail) {
        return Err(format!("{error:?}"));
    }
    if error.message().is_empty()
        || error.hint().is_empty()
        || ['W', 'q', 'p', 'P'].iter().any(|trace| !error.get(*trace).is_empty())
    {
        return Err(format!("{error:?}"));
    }
    Ok(())
}
