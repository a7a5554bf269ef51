//! The regression tests as PostgreSQL runs them: psql, file by file, in the order of the schedule. The traffic of psql
//! passes through our sessions.

use crate::corpus::session::{Record, Session};
use crate::support::guardian::{Folder, Port};
use crate::support::postgres_source::regression_tests;
use crate::support::{Address, Options, Postgres, programs};
use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

const DATABASE: &str = "regression";

/// Number of concurrent files of a group.
const AT_ONCE: usize = 4;

/// Prevent hanging statements, and variable execution times.
const SETTINGS: [(&str, &str); 5] = [
    ("statement_timeout", "20s"),
    ("autovacuum", "off"),
    ("deadlock_timeout", "200ms"),
    ("jit", "off"),
    ("max_locks_per_transaction", "256"),
];

/// Runs all tests once, and returns the results.
pub fn run() -> Record {
    let tests = regression_tests();
    let options = SETTINGS.iter().fold(Options::default(), |options, (name, value)| options.setting(name, value));
    let postgres = Postgres::start(options);
    prepare(&postgres);
    // The server reads and writes files of COPY here.
    let folder = Folder::new("regress");
    let files = format!(
        "cp -a '{}/.' '{1}'; mkdir '{1}/results'; chmod -R a+rwX '{1}'",
        tests.display(),
        folder.path().display()
    );
    programs::run(Command::new("sh").args(["-c", &files]));

    let record = Arc::new(Mutex::new(Record::default()));
    let port = Port::claim();
    let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
    let (server, shared) = (postgres.port(), record.clone());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, record) = (client.unwrap(), shared.clone());
            thread::spawn(move || {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                Session::new(client, server, &record).unwrap().run();
            });
        }
    });
    for group in schedule(&tests) {
        run_group(group, folder.path(), port.number());
    }
    std::mem::take(&mut *record.lock().unwrap())
}

fn prepare(postgres: &Postgres) {
    postgres.sql(&format!("CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8'"));
    for setting in ["lc_messages", "lc_monetary", "lc_numeric", "lc_time"] {
        postgres.sql(&format!("ALTER DATABASE {DATABASE} SET {setting} TO 'C'"));
    }
    postgres.sql(&format!("ALTER DATABASE {DATABASE} SET timezone_abbreviations TO 'Default'"));
}

fn schedule(tests: &Path) -> Vec<VecDeque<String>> {
    let schedule = std::fs::read_to_string(tests.join("parallel_schedule")).unwrap();
    let groups = schedule.lines().filter_map(|line| line.strip_prefix("test: "));
    groups.map(|group| group.split_whitespace().map(str::to_owned).collect()).collect()
}

fn run_group(group: VecDeque<String>, folder: &Path, port: u16) {
    let waiting = Mutex::new(group);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(test) = waiting.lock().unwrap().pop_front() else { break };
                    psql(&test, folder, port);
                }
            });
        }
    });
}

/// Ignores the exit code of psql, because most files contain errors on purpose.
fn psql(test: &str, folder: &Path, port: u16) {
    let address = Address::Tcp(([127, 0, 0, 1], port).into());
    let mut command = programs::psql(&address, DATABASE);
    command.args(["-aq", "-v", "ON_ERROR_STOP=0", "-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"]);
    command.arg("-f").arg(folder.join(format!("sql/{test}.sql"))).current_dir(folder);
    for (name, value) in [
        ("PGTZ", "PST8PDT"),
        ("PGDATESTYLE", "Postgres, MDY"),
        ("PGSSLMODE", "disable"),
        ("PGGSSENCMODE", "disable"),
        ("PGAPPNAME", test),
        ("PG_LIBDIR", "."),
        ("PG_DLSUFFIX", ".so"),
    ] {
        command.env(name, value);
    }
    command.env("PG_ABS_SRCDIR", folder).env("PG_ABS_BUILDDIR", folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
}
