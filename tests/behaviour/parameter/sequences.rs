//! After every step of random sequences, the proxy enforces `current_setting('lease.fence', true)`. Another session
//! holds the highest token, so the error of a write shows the presented token. A failure prints the shortest failing
//! sequence, as statements.

use super::sequence::{Action, Probe, Startup, Step, sequences};
use crate::support::fenced::{Fenced, init, ok};
use crate::support::message::{bind_text, close_statement, execute, parse, query, sync, unnamed};
use crate::support::wire::{Fields, error_in, rows_in};
use crate::support::{Frame, Options, ProxyOptions, Wire, length, seed};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

const THREADS: u64 = 2;
const FEW: u64 = 120;
const SEQUENCES: u64 = 1200;

const ROLES: &str = "CREATE ROLE leader LOGIN; ALTER ROLE leader SET lease.fence = '31'; CREATE ROLE unused";
const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (t text); GRANT ALL ON jobs, free TO leader; \
    CREATE FUNCTION become(token text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('lease.fence', token, false) $$; \
    CREATE FUNCTION become_locally(token text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('lease.fence', token, true) $$; \
    CREATE FUNCTION become_by_set(token text) RETURNS text LANGUAGE plpgsql AS \
        $$ BEGIN EXECUTE format('SET lease.fence = %L', token); RETURN token; END $$; \
    CREATE FUNCTION for_a_while() RETURNS text LANGUAGE sql SET lease.fence = '99' AS $$ SELECT current_setting('lease.fence') $$; \
    CREATE FUNCTION for_a_while_and_then(token text) RETURNS text LANGUAGE sql SET lease.fence = '99' AS \
        $$ SELECT set_config('lease.fence', token, false) $$; \
    CREATE FUNCTION in_vain(token text) RETURNS text LANGUAGE plpgsql AS \
        $$ BEGIN PERFORM become(token); RAISE 'no'; EXCEPTION WHEN raise_exception THEN RETURN 'as before'; END $$; \
    CREATE FUNCTION as_if_constant(token text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT become(token) $$; \
    CREATE PROCEDURE work(token text) LANGUAGE plpgsql AS \
        $$ BEGIN SET lease.fence = '98'; COMMIT; PERFORM become_locally(token); END $$";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\nopaque: allow\n";
/// This database has its own token.
const DATABASE: &str = "tuned";

const SETTING: &str = "SELECT 'the value', current_setting('lease.fence', true)";
const WRITE: &str = "INSERT INTO jobs VALUES (1)";
const FAILED_TRANSACTION: &str = "25P02";

#[derive(Default)]
struct Counts {
    sequences: AtomicU32,
    steps: AtomicU32,
    probes: AtomicU32,
}

#[test]
fn after_every_step() {
    let seed = seed();
    let count = length(FEW, SEQUENCES);
    let (world, counts) = (start(), Counts::default());
    thread::scope(|scope| {
        let (world, counts) = (&world, &counts);
        for thread in 0..THREADS {
            scope.spawn(move || {
                let cases = u32::try_from(count.div_ceil(THREADS)).unwrap();
                check(world, counts, RngSeed::Fixed(seed * THREADS + thread), cases);
            });
        }
    });
    let [sequences, steps, probes] =
        [&counts.sequences, &counts.steps, &counts.probes].map(|count| count.load(Relaxed));
    println!("seed {seed}: {sequences} sequences, {steps} steps, {probes} probes");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");
}

fn start() -> Fenced {
    let options = Options::default().setting("fsync", "off");
    let world = Fenced::start_with(options, &format!("{ROLES}; {SCHEMA}"), &ProxyOptions::default().policies(POLICIES));
    world.postgres.sql(&format!("CREATE DATABASE {DATABASE}"));
    world.postgres.sql(&format!("ALTER DATABASE {DATABASE} SET lease.fence = '21'"));
    world.postgres.sql_in(DATABASE, SCHEMA);
    init(&world.postgres, DATABASE);
    for database in ["postgres", DATABASE] {
        let mut wire = Wire::login(&world.proxy.address(), "postgres", database);
        ok(&mut wire, &format!("SET lease.fence = {}", i64::MAX));
        ok(&mut wire, "DELETE FROM jobs");
    }
    world
}

fn check(world: &Fenced, counts: &Counts, rng_seed: RngSeed, cases: u32) {
    let config = Config {
        cases,
        rng_seed,
        failure_persistence: None,
        max_shrink_iters: 2000,
        max_shrink_time: 120_000,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&sequences(), |sequence| {
        counts.sequences.fetch_add(1, Relaxed);
        run(world, counts, sequence.startup, &sequence.steps)?;
        let Some(again) = sequence.again else { return Ok(()) };
        let mut steps = sequence.steps[..again.min(sequence.steps.len())].to_vec();
        steps.iter_mut().for_each(|step| step.probe = Probe::No);
        steps.last_mut().unwrap().probe = Probe::After { ahead: false, extended: true };
        run(world, counts, sequence.startup, &steps)
    });
    match outcome {
        Ok(()) => (),
        Err(TestError::Fail(why, sequence)) => panic!("{why}\n{sequence}"),
        Err(error) => panic!("{error}"),
    }
}

fn run(world: &Fenced, counts: &Counts, startup: Startup, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut wire = login(world, startup);
    for (index, step) in steps.iter().enumerate() {
        counts.steps.fetch_add(1, Relaxed);
        counts.probes.fetch_add(u32::from(step.probe != Probe::No), Relaxed);
        let ended = take(&mut wire, step).map_err(|why| TestCaseError::fail(format!("step {}: {why}", index + 1)))?;
        if ended {
            break;
        }
    }
    Ok(())
}

fn login(world: &Fenced, startup: Startup) -> Wire {
    let mut parameters = vec![("user", "postgres"), ("database", "postgres")];
    match startup {
        Startup::Nowhere => (),
        Startup::Parameter(value) => parameters.push(("lease.fence", value)),
        Startup::Options(options) => parameters.push(("options", options)),
        Startup::Role => parameters[0].1 = "leader",
        Startup::Database => parameters[1].1 = DATABASE,
    }
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let frames = wire.start(&parameters, "");
    assert_eq!(error_in(&frames), None, "{startup:?}");
    wire
}

/// True if the server has ended the session.
fn take(wire: &mut Wire, step: &Step) -> Result<bool, String> {
    let mut messages = messages(&step.action, step.probe == Probe::Within);
    let ahead = matches!(step.probe, Probe::After { ahead: true, .. });
    let probing = match step.probe {
        Probe::After { extended, .. } => probing(extended),
        Probe::No | Probe::Within => Vec::new(),
    };
    if ahead {
        messages.extend(probing.concat());
    }
    let mut frames = exchange(wire, &messages, &step.action);
    let last = frames.last().ok_or("the session has ended")?;
    if last.tag == b'E' {
        // The server does this if EXECUTE runs a transaction statement.
        let is_internal = last.fields().code() == "XX000";
        return if is_internal { Ok(true) } else { Err(format!("the session has ended: {last:?}")) };
    }
    if step.probe == Probe::Within {
        return compare_within(&frames, &step.action).map(|()| false);
    }
    if !ahead {
        frames = probing.iter().flat_map(|message| wire.exchange(message)).collect();
    }
    if !probing.is_empty() {
        compare_after(&frames)?;
    }
    Ok(false)
}

/// Messages that leave no trace in a transaction. Some of them fail outside a transaction.
fn probing(extended: bool) -> Vec<Vec<u8>> {
    let write = if extended { [unnamed(WRITE, &[]), sync()].concat() } else { query(WRITE) };
    let [savepoint, setting, back, release] =
        ["SAVEPOINT probe", SETTING, "ROLLBACK TO probe", "RELEASE probe"].map(query);
    vec![savepoint, setting, write, back, release]
}

/// The messages of an action. They end with a Query or a Sync.
fn messages(action: &Action, within: bool) -> Vec<u8> {
    let probing: &[&str] = if within { &[SETTING, WRITE] } else { &[] };
    let string = |texts: &[String]| {
        let texts: Vec<&str> = texts.iter().map(String::as_str).chain(probing.iter().copied()).collect();
        query(&texts.join("; "))
    };
    let extended = |texts: &[String]| texts.iter().flat_map(|text| unnamed(text, &[])).collect::<Vec<u8>>();
    let probes: Vec<u8> = probing.iter().flat_map(|text| unnamed(text, &[])).collect();
    let batch = |messages: &[Vec<u8>]| [messages.concat(), probes.clone(), sync()].concat();
    match action {
        Action::Simple(texts) => string(texts),
        Action::Queries(texts) => {
            texts.iter().map(String::as_str).chain(probing.iter().copied()).flat_map(query).collect()
        }
        Action::Extended(texts) => {
            let (last, before) = texts.split_last().unwrap();
            let before = before.iter().map(|text| [unnamed(text, &[]), sync()].concat()).collect::<Vec<_>>();
            [before.concat(), batch(&[unnamed(last, &[])])].concat()
        }
        Action::Pipeline(texts) => batch(&[extended(texts)]),
        Action::PipelineThenSimple(texts) => {
            let (last, before) = texts.split_last().unwrap();
            [extended(before), string(std::slice::from_ref(last)), sync()].concat()
        }
        Action::Parse(text) => batch(&[parse("s", text, &[])]),
        Action::Run => batch(&[bind_text("", "s", &[]), execute("", 0)]),
        Action::Close => batch(&[close_statement("s")]),
        Action::Bind(text) => batch(&[parse("", text, &[]), bind_text("p", "", &[])]),
        Action::Execute => batch(&[execute("p", 1)]),
    }
}

/// Reads up to the reply to a final Close, which even a failed transaction answers. The number of earlier replies is
/// unknown.
fn exchange(wire: &mut Wire, messages: &[u8], action: &Action) -> Vec<Frame> {
    wire.send(&[messages, &close_statement("the end of the step"), &sync()].concat());
    let mut frames = wire.read_until(b'3');
    if matches!(action, Action::Close) {
        frames.extend(wire.read_until(b'3'));
    }
    wire.read_until_ready();
    frames
}

/// Compares the replies to [`probing`] at the end of `frames`, one ReadyForQuery each.
fn compare_after(frames: &[Frame]) -> Result<(), String> {
    let replies: Vec<&[Frame]> =
        frames.split_inclusive(|frame| frame.tag == b'Z').filter(|reply| reply.last().unwrap().tag == b'Z').collect();
    let [.., _savepoint, setting, write, _back, _release] = replies.as_slice() else {
        return Err(format!("{frames:?}"));
    };
    match (rows_in(setting).pop(), error_in(write)) {
        (Some(row), Some(error)) => compare(&row, &error),
        (None, Some(error)) if error.code() == FAILED_TRANSACTION => Ok(()),
        (row, error) => Err(format!("the server has {row:?}, the write ends with {error:?}")),
    }
}

fn compare_within(frames: &[Frame], action: &Action) -> Result<(), String> {
    let is_setting = |frame: &Frame| frame.tag == b'D' && frame.columns()[0].as_deref() == Some("the value");
    let Some(index) = frames.iter().rposition(is_setting) else { return Ok(()) };
    match error_in(&frames[index..]) {
        // The proxy cannot query the value in the middle of a string.
        Some(error)
            if error.code() == "LF004" && matches!(action, Action::Simple(_) | Action::PipelineThenSimple(_)) =>
        {
            Ok(())
        }
        Some(error) => compare(&frames[index].columns(), &error),
        None => Err(format!("the write has passed: {frames:?}")),
    }
}

fn compare(row: &[Option<String>], error: &Fields) -> Result<(), String> {
    let value = row[1].as_deref().unwrap_or_default();
    let expected = presented_by(value);
    let presented = error.detail().split(' ').find_map(|item| item.strip_prefix("presented="));
    let found = match (error.code(), presented) {
        ("LF001", Some(token)) => token.to_owned(),
        (code, _) => code.to_owned(),
    };
    if found == expected {
        Ok(())
    } else {
        Err(format!("the server has '{value}', the proxy enforces {found}: {error:?}"))
    }
}

/// The token for the resource, or the SQLSTATE if there is none.
fn presented_by(value: &str) -> String {
    let tokens: Vec<_> =
        value.split(',').map(|item| item.trim().split_once('=').unwrap_or(("scheduler", item))).collect();
    match tokens.iter().find(|(resource, _)| *resource == "scheduler") {
        None | Some((_, "")) => "LF002".into(),
        Some((_, "0" | "x")) => "LF003".into(),
        Some((_, token)) => (*token).to_owned(),
    }
}
