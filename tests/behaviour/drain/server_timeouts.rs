//! A write waits for an older holder that does not end, while a timeout of the server would end the writer's session.
//! The proxy reports LF006 first, and the session continues.

use crate::support::frozen::Frozen;
use crate::support::ticks::{self, WRITE, ok};
use crate::support::wire::{Fields, error_in};
use crate::support::{DEADLINE, Options, Postgres, Proxy, Release, Wire, message, wait_until};

const IN_TRANSACTION: &str = "idle_in_transaction_session_timeout";
const OUTSIDE: &str = "idle_session_timeout";
const WHOLE: &str = "transaction_timeout";

/// How the session gets the timeout. The timeout is 4 s, because all sessions start before the first of them raises the
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetBy {
    Role,
    Database,
    Startup,
    Session,
    /// By a statement that the proxy cannot follow.
    Function,
    Transaction,
}

/// How the client sends the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Query,
    Extended,
    /// Parse, Bind and Execute without a Sync.
    Flushed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// The session has not written yet.
    First,
    /// The session has written under the older holder's token.
    Raised,
}

struct World {
    // Before the server: fields are dropped in this order.
    frozen: Option<Frozen>,
    proxy: Proxy,
    postgres: Postgres,
    _older: Wire,
}

impl World {
    fn start(options: Options) -> Self {
        let postgres = Postgres::start(options);
        ticks::init(&postgres, "postgres");
        postgres.sql(
            "CREATE FUNCTION sets(name text) RETURNS text LANGUAGE plpgsql AS
             $$ BEGIN RETURN set_config(name, '4s', false); END $$",
        );
        let proxy = ticks::proxy(&postgres);
        let mut older = ticks::session(&proxy.address(), 1);
        let process = ticks::process(&mut older);
        ok(&mut older, "BEGIN");
        ok(&mut older, WRITE);
        Self { frozen: Some(Frozen::processes([&*process])), proxy, postgres, _older: older }
    }

    /// A session that is about to write under token 2.
    fn session(&self, (setting, by): (&str, SetBy), token: Token) -> Wire {
        let user = format!("{}_{setting}", format!("{by:?}").to_lowercase());
        let exists = self.postgres.value(&format!("SELECT count(*) FROM pg_roles WHERE rolname = '{user}'")) != "0";
        if !exists {
            self.postgres.sql(&format!("CREATE ROLE {user} LOGIN"));
            if by == SetBy::Role {
                self.postgres.sql(&format!("ALTER ROLE {user} SET {setting} = '4s'"));
            }
            if by == SetBy::Database {
                self.postgres.sql(&format!("ALTER ROLE {user} IN DATABASE postgres SET {setting} = '4s'"));
            }
        }
        let startup = if by == SetBy::Startup { format!(" -c {setting}=4s") } else { String::new() };
        let first = if token == Token::Raised { 1 } else { 2 };
        let options = format!("-c lease.fence={first}{startup}");
        let mut wire = Wire::connect(&self.proxy.address()).unwrap();
        let parameters = [("user", user.as_str()), ("database", "postgres"), ("options", options.as_str())];
        assert_eq!(error_in(&wire.start(&parameters, "")), None, "login");
        if by == SetBy::Session {
            ok(&mut wire, &format!("SET {setting} = '4s'"));
        }
        if by == SetBy::Function {
            ok(&mut wire, &format!("SELECT sets('{setting}')"));
        }
        if token == Token::Raised {
            ok(&mut wire, WRITE);
            ok(&mut wire, "SET lease.fence = 2");
        }
        wire
    }
}

fn send_write(wire: &mut Wire, by: By) {
    wire.send(&match by {
        By::Query => message::query(WRITE),
        By::Extended => [message::unnamed(WRITE, &[]), message::sync()].concat(),
        By::Flushed => [message::unnamed(WRITE, &[]), message::flush()].concat(),
    });
}

fn answer(wire: &mut Wire, by: By) -> Option<Fields> {
    if by == By::Flushed {
        let error = error_in(&wire.read_until(b'E'));
        wire.send(&message::sync());
        assert_eq!(error_in(&wire.read_until_ready()), None);
        return error;
    }
    error_in(&wire.read_until_ready())
}

/// Sends all writes, in transactions or without BEGIN, and checks their errors. Then the older holder ends, and each
/// session retries.
fn all_survive(mut world: World, cases: &[(&'static str, SetBy)], begins: bool, raised_by: By) {
    const ALL: [By; 3] = [By::Query, By::Extended, By::Flushed];
    let raised = std::iter::once((cases[0], raised_by, Token::Raised));
    let first = cases.iter().enumerate().map(|(number, case)| (*case, ALL[number % ALL.len()], Token::First));
    let session = |(case, by, token)| (format!("{case:?} {by:?} {token:?}"), case, by, world.session(case, token));
    let mut sessions: Vec<_> = raised.chain(first).map(session).collect();
    for (_, (setting, set_by), by, wire) in &mut sessions {
        if begins {
            ok(wire, "BEGIN");
        }
        if *set_by == SetBy::Transaction {
            ok(wire, &format!("SET LOCAL {setting} = '4s'"));
        }
        send_write(wire, *by);
        // The first session keeps its server process only if it raises the token itself.
        wait_until("the token is raised", DEADLINE, || {
            world.postgres.value("SELECT count(*) FROM fencegate_state.epoch WHERE token = 2") == "1"
        });
    }
    for (name, (setting, _), by, wire) in &mut sessions {
        let error = answer(wire, *by).unwrap_or_else(|| panic!("{name}: it is admitted"));
        assert_eq!((error.severity(), error.code()), ("ERROR", "LF006"), "{name}: {error:?}");
        let reason = format!("stopped waiting, because {setting} (4s) would end the session");
        assert!(error.message().contains(&reason), "{name}: {error:?}");
        assert!(error.hint().contains(&format!("raise {setting}")), "{name}: {error:?}");
        if begins {
            ok(wire, "ROLLBACK");
        }
        ok(wire, "SHOW lease.fence");
    }
    world.frozen = None;
    for (name, _, by, wire) in &mut sessions {
        wait_until(format!("{name} writes"), DEADLINE, || {
            if begins {
                ok(wire, "BEGIN");
            }
            send_write(wire, if *by == By::Flushed { By::Extended } else { *by });
            let error = error_in(&wire.read_until_ready());
            assert!(error.as_ref().is_none_or(|error| error.code() == "LF006"), "{name}: {error:?}");
            if begins {
                ok(wire, if error.is_some() { "ROLLBACK" } else { "COMMIT" });
            }
            error.is_none()
        });
    }
    let written = world.postgres.value("SELECT count(*) FROM ticks WHERE token = 2");
    assert_eq!(written, sessions.len().to_string());
}

const ALWAYS: [SetBy; 5] = [SetBy::Role, SetBy::Database, SetBy::Startup, SetBy::Session, SetBy::Function];

#[test]
fn a_write_in_a_transaction_fails_before_the_idle_timeout() {
    let cases = ALWAYS.iter().chain(&[SetBy::Transaction]).map(|by| (IN_TRANSACTION, *by));
    all_survive(World::start(Options::default()), &cases.collect::<Vec<_>>(), true, By::Flushed);
}

#[test]
fn a_write_outside_a_transaction_fails_before_the_idle_timeout() {
    let cases = ALWAYS.map(|by| (OUTSIDE, by));
    all_survive(World::start(Options::default()), &cases, false, By::Extended);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_write_fails_before_the_transaction_timeout() {
    let eighteen = || Options::default().release(Release::Eighteen);
    let cases = ALWAYS.iter().chain(&[SetBy::Transaction]).map(|by| (WHOLE, *by));
    all_survive(World::start(eighteen()), &cases.collect::<Vec<_>>(), true, By::Query);
    // Without BEGIN, the first message of a pipeline starts a transaction.
    let mut world = World::start(eighteen());
    let mut session = world.session((WHOLE, SetBy::Role), Token::First);
    send_write(&mut session, By::Flushed);
    let error = answer(&mut session, By::Flushed).expect("the wait ends");
    assert!(error.code() == "LF006" && error.message().contains(WHOLE), "{error:?}");
    world.frozen = None;
    wait_until("it writes", DEADLINE, || {
        send_write(&mut session, By::Extended);
        error_in(&session.read_until_ready()).is_none()
    });
    all_survive(World::start(eighteen()), &[(OUTSIDE, SetBy::Role), (OUTSIDE, SetBy::Session)], false, By::Query);
}

/// The error names the processes that the write waits for; the timeout continues after the error.
#[test]
fn the_reason_names_the_older_holder() {
    let mut world = World::start(Options::default());
    let older = world.postgres.value("SELECT pid FROM fencegate_state.admission");
    let mut session = world.session((OUTSIDE, SetBy::Session), Token::First);
    send_write(&mut session, By::Query);
    let error = answer(&mut session, By::Query).expect("the wait ends");
    assert_eq!(error.code(), "LF006");
    assert!(error.message().contains(&format!("process {older}")), "{error:?}");
    world.frozen = None;
    let told = session.read_to_end();
    assert_eq!(error_in(&told).map(|error| error.code().to_owned()).as_deref(), Some("57P05"), "it is idle");
}
