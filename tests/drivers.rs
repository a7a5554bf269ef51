//! What users of drivers see: the driver works through the proxy, and shows the SQLSTATE of each rejection, also of
//! the one that ends its session.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use support::fenced::{Fenced, ok};
use support::{DEADLINE, programs, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int)";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

#[test]
fn psycopg() {
    every_way(|port| python("psycopg", port));
}

/// It takes an error for an answer only once ReadyForQuery follows.
#[test]
fn asyncpg() {
    every_way(|port| python("asyncpg", port));
}

#[test]
fn node_postgres() {
    every_way(|port| {
        let mut command = Command::new("node");
        command.current_dir(programs::node_folder()).env("NODE_PATH", programs::node_folder().join("node_modules"));
        command.arg(script("session.js")).arg(port);
        command
    });
}

#[test]
fn psql() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let start = |token: i64| {
        let mut command = programs::psql(&world.proxy.address(), "postgres");
        // Errors come where answers do, each statement when it is sent.
        command.args(["-Atq", "-v", "ON_ERROR_STOP=0", "-v", "VERBOSITY=verbose", "-f", "-"]);
        command.env("PGOPTIONS", format!("-c lease.fence={token}"));
        Driver::start(&mut command)
    };
    let mut driver = start(47);
    driver.send("INSERT INTO jobs VALUES (1) RETURNING 'written';");
    assert_eq!(driver.answer(), "written");
    driver.send("BEGIN; INSERT INTO jobs VALUES (2) RETURNING 'written';");
    assert_eq!(driver.answer(), "written");
    ok(&mut world.holder(48), "DELETE FROM jobs");
    driver.send("SELECT 'after';");
    let answer = driver.answer();
    assert!(answer.contains("FATAL:  LF001: "), "{answer}");
    let detail = driver.answer();
    assert!(detail.contains("highest=48 outcome=rolled_back"), "{detail}");

    let mut driver = start(47);
    driver.send("INSERT INTO jobs VALUES (1);");
    let answer = driver.answer();
    assert!(answer.contains("ERROR:  LF001: "), "{answer}");
}

fn every_way(command: impl Fn(&str) -> Command) {
    let world = Fenced::start(SCHEMA, POLICIES);
    let (_, port) = world.proxy.address().host_and_port();
    let connect = |token: i64| {
        let mut driver = Driver::start(&mut command(&port));
        assert_eq!(driver.ask(&format!("connect {token}")), "connected");
        driver
    };
    let mut driver = connect(47);
    assert_eq!(driver.ask("basics"), "30");
    let stale = "LF001 ERROR resource=scheduler presented=47 highest=48";

    // Idle in a transaction: the answer to the next message.
    driver.ask("run BEGIN");
    driver.ask("run INSERT INTO jobs VALUES (100)");
    ok(&mut world.holder(48), "DELETE FROM jobs");
    let cut_off = "LF001 FATAL resource=scheduler presented=47 highest=48 outcome=rolled_back";
    assert_eq!(driver.ask("run SELECT 'after'"), cut_off);

    // Stale from the start; the session goes on.
    let mut driver = connect(47);
    assert_eq!(driver.ask("run INSERT INTO jobs VALUES (101)"), stale);
    assert_eq!(driver.ask("run SELECT 'on'"), "on");
    driver.ask("run BEGIN");
    assert_eq!(driver.ask("run INSERT INTO jobs VALUES (102)"), stale);
    assert!(driver.ask("run SELECT 'refused'").starts_with("25P02 ERROR"));
    driver.ask("run ROLLBACK");
    assert_eq!(driver.ask("run SELECT 'on'"), "on");
    driver.ask("run RESET lease.fence");
    assert_eq!(driver.ask("run SET lease.fence = 'x'").split(' ').next(), Some("LF003"));

    // While a statement runs: at once.
    let mut driver = connect(48);
    driver.ask("run BEGIN");
    driver.ask("run INSERT INTO jobs VALUES (103)");
    driver.send("run SELECT pg_sleep(600)");
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait_until("the statement runs", DEADLINE, || world.postgres.value(sleeping) == "1");
    ok(&mut world.holder(49), "DELETE FROM jobs");
    let cut_off = "LF001 FATAL resource=scheduler presented=48 highest=49 outcome=unknown";
    assert_eq!(driver.answer(), cut_off);
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");
}

fn python(driver: &str, port: &str) -> Command {
    let mut command = Command::new(programs::python());
    command.arg(script("session.py")).args([driver, port]);
    command
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers").join(name)
}

/// A program that takes a line and answers with one. It ends when its input does.
struct Driver {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Driver {
    fn start(command: &mut Command) -> Self {
        let (output, both) = std::io::pipe().unwrap();
        command.stdin(Stdio::piped()).stdout(both.try_clone().unwrap()).stderr(both);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        // The command holds the ends of the pipe that would keep it open.
        *command = Command::new("true");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok()
        });
        Self { input: child.stdin.take(), child, answers }
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer()
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        self.answers.recv_timeout(DEADLINE).expect("an answer")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.input.take());
        // It may be in the middle of something.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
