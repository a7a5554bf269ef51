//! A server whose database `app` has the fenced table `jobs`, the proxy, and the applications that use it.

use crate::support::fenced::{init, ok};
use crate::support::{Address, DEADLINE, Options, Postgres, Proxy, Wire, postgres::SUPERUSER, wait_until};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const FENCED: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

pub struct World {
    // Before the server: fields are dropped in this order.
    pub proxy: Proxy,
    pub postgres: Postgres,
}

impl World {
    pub fn start(more_policies: &str) -> Self {
        let postgres = Postgres::start(Options::default());
        postgres.sql("CREATE DATABASE app");
        init(&postgres, "app");
        let proxy = Proxy::start(&postgres, &(FENCED.to_owned() + more_policies), &[]);
        Self { proxy, postgres }
    }

    /// Another leader writes with that token.
    pub fn raise_to(&self, token: i64) {
        let mut leader = Wire::login(&self.proxy.address(), SUPERUSER, "app");
        ok(&mut leader, &format!("SET lease.fence = {token}"));
        ok(&mut leader, "DELETE FROM jobs");
    }

    /// The process IDs of open control connections, or an empty text.
    pub fn control_processes_of(&self, database: &str) -> String {
        let open = "SELECT coalesce(string_agg(pid::text, ' ' ORDER BY pid), '') FROM pg_stat_activity \
             WHERE application_name = 'fencegate control'";
        self.postgres.value(&format!("{open} AND datname = '{database}'"))
    }

    pub fn wait_until_no_control_connection_is_left(&self) {
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencegate control'";
        wait_until("the control connections are closed", DEADLINE, || self.postgres.value(left) == "0");
    }
}

/// Output and success of an application.
pub struct Outcome {
    pub lines: Vec<String>,
    pub errors: String,
    pub success: bool,
}

impl Outcome {
    /// The output of an application that must have succeeded.
    #[track_caller]
    pub fn lines(self) -> Vec<String> {
        assert!(self.success, "{}\n{}", self.lines.join("\n"), self.errors);
        self.lines
    }
}

/// A script of this folder, run by `program`.
pub fn application(program: PathBuf, script: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(folder().join(script)).stdin(Stdio::null());
    command
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/soak/frameworks")
}

/// Runs the command with that address and token.
pub fn run(command: &mut Command, address: &Address, token: Option<i64>) -> Outcome {
    let (host, port) = address.host_and_port();
    command.env("PGHOST", host).env("PGPORT", port).env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(token) = token {
        command.env("FRAMEWORK_TOKEN", token.to_string());
    }
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let lines = text(&output.stdout).lines().map(str::to_owned).collect();
    Outcome { lines, errors: text(&output.stderr), success: output.status.success() }
}

/// Without a token, or with a stale one, these steps fail with the error. On the unfenced table they succeed, and so do
/// all other steps.
#[track_caller]
pub fn assert_only_fenced_writes_fail(lines: &[String], with_token: &[String], code: &str, fail: &[&str]) {
    let of = |table: &'static str, lines: &[String]| -> Vec<String> {
        lines.iter().filter_map(|line| line.strip_prefix(table).map(|step| step.trim_start().to_owned())).collect()
    };
    assert_eq!(of("notes", lines), of("notes", with_token));
    let jobs = of("jobs", lines);
    let failed: Vec<&str> = jobs.iter().filter_map(|step| step.strip_suffix(&format!(": {code}"))).collect();
    assert_eq!(failed, fail, "{jobs:#?}");
    assert_eq!(jobs.len(), of("jobs", with_token).len());
}
