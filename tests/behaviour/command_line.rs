//! The command line before anything runs: typos, missing settings, `proxy --check`, and the files that packages
//! install.

use crate::support::etcd::Etcd;
use crate::support::fenced::init;
use crate::support::guardian::{Folder, Port};
use crate::support::programs::forget_settings;
use crate::support::proxy::BINARY;
use crate::support::{DEADLINE, Options, Postgres, ticks, wait_until};
use std::fs;
use std::process::{Command, Output, Stdio};

const POLICIES: &str = "version: 1
resources:
  - name: scheduler
    election: /cron/leader
    tables: [public.jobs]
  - name: reports
    lease: cron/reports
    tables: [public.reports]
";

fn run(arguments: &[&str]) -> Output {
    // A command that hangs fails: `timeout` exits with 124.
    let mut command = Command::new("timeout");
    forget_settings(&mut command);
    command.args(["--signal=KILL", "60", BINARY]).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_typo_gets_a_suggestion() {
    for (arguments, meant) in [
        (&["prxy"][..], "did you mean `proxy`?"),
        (&["polcy"], "did you mean `policy`?"),
        (&["leade"], "did you mean `lead`?"),
        (&["policy", "chek"], "did you mean `check`?"),
        (&["proxy", "--upstrem", "postgres://db"], "did you mean `--upstream`?"),
        (&["lead", "--electon", "x"], "did you mean `--election`?"),
        (&["proxy", "--log-format", "jsn"], "did you mean `json`?"),
        (&["proxy", "--log-fromat", "json"], "did you mean `--log-format`?"),
        (&["--log-format", "json", "guard", "instal"], "did you mean `install`?"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", error(&output));
        assert!(error(&output).contains(meant), "{arguments:?}: {}", error(&output));
    }
    for arguments in [&["something"][..], &["proxy", "--something"], &["lead-gard"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", error(&output));
        assert!(!error(&output).contains("did you mean"), "{arguments:?}: {}", error(&output));
    }
}

#[test]
fn a_missing_separator_before_the_command_is_reported() {
    let lead = ["lead", "--etcd", "http://127.0.0.1:1", "--election", "x"];
    for command in [&["sleep", "5"][..], &["python3", "-m", "worker"], &[]] {
        let output = run(&[&lead[..], command].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", error(&output));
        assert!(error(&output).contains("put the command to run after `--`"), "{command:?}: {}", error(&output));
    }
    for arguments in [&["lead", "--", "true"][..], &["lead", "-x", "--", "true"], &["init", "x"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", error(&output));
        assert!(!error(&output).contains("follows `--`"), "{arguments:?}: {}", error(&output));
    }
}

/// --control and --database are synonyms in all commands that need a database.
#[test]
fn a_database_has_the_same_name_in_all_commands() {
    let folder = Folder::new("names");
    fs::write(folder.join("policy.yaml"), POLICIES).unwrap();
    let policies = folder.path().to_str().unwrap();
    for arguments in [
        &["init"][..],
        &["remove"],
        &["guard", "install", "--policies", policies],
        &["guard", "status", "--policies", policies],
        &["guard", "remove"],
        &["policy", "check", policies],
        &["policy", "explain", policies],
    ] {
        for name in ["--control", "--database"] {
            let output = run(&[arguments, &[name, "postgres://nobody@127.0.0.1:1/app"]].concat());
            assert_eq!(output.status.code(), Some(1), "{arguments:?} {name}: {}", error(&output));
            assert!(error(&output).contains("Connection refused"), "{arguments:?} {name}: {}", error(&output));
        }
    }
}

#[test]
fn all_missing_settings_are_reported_at_once() {
    let output = run(&["proxy"]);
    assert_eq!(output.status.code(), Some(2));
    for name in ["upstream", "control", "policies"] {
        assert!(error(&output).contains(&format!("`{name}` is not set: set --{name},")), "{}", error(&output));
    }
}

#[test]
fn completions_and_manual_pages_name_every_subcommand() {
    let folder = Folder::new("man");
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && ["proxy", "lead", "guard", "remove"].iter().all(|name| text.contains(name)),
            "{shell}"
        );
    }
    assert!(run(&["man", &folder.path().display().to_string()]).status.success());
    for page in
        ["fencegate.1", "fencegate-proxy.1", "fencegate-remove.1", "fencegate-lead.1", "fencegate-policy-check.1"]
    {
        assert!(fs::read_to_string(folder.join(page)).is_ok_and(|text| text.starts_with(".ie")), "{page}");
    }
}

/// The exit code and output of `proxy --check`.
fn check(folder: &Folder, upstream: &str, arguments: &[&str]) -> (Option<i32>, String) {
    check_as("postgres", folder, upstream, arguments)
}

fn check_as(role: &str, folder: &Folder, upstream: &str, arguments: &[&str]) -> (Option<i32>, String) {
    fs::write(folder.join("policies.yaml"), POLICIES).unwrap();
    let policies = folder.path().display().to_string();
    let control = format!("{}/postgres", upstream.replace("postgres://", &format!("postgres://{role}@")));
    let all =
        [&["proxy", "--check", "--upstream", upstream, "--control", &control, "--policies", &policies], arguments];
    let output = run(&all.concat());
    (output.status.code(), format!("{}{}", String::from_utf8_lossy(&output.stdout), error(&output)))
}

/// The output has a line with this start that contains `part`.
#[track_caller]
fn says(said: &str, begin: &str, part: &str) {
    assert!(said.lines().any(|line| line.starts_with(begin) && line.contains(part)), "{begin}…{part} in\n{said}");
}

#[test]
fn a_check_reports_the_problems_of_a_proxy() {
    let (etcd, postgres, folder) = (Etcd::start(), Postgres::start(Options::default()), Folder::new("check"));
    postgres.sql("CREATE TABLE jobs (n int); CREATE TABLE reports (n int)");
    let (host, port) = postgres.address().host_and_port();
    let upstream = format!("postgres://{host}:{port}");
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";

    let (code, said) = check(&folder, &upstream, &["--etcd", &etcd.url()]);
    assert_eq!(code, Some(1), "{said}");
    says(&said, "ok      upstream", "accepts connections");
    says(&said, "failed  control postgres", "fencegate init --control postgres://postgres@");
    says(&said, "ok      etcd /cron/leader", "no leader");

    init(&postgres, "postgres");
    let (code, said) = check(&folder, &upstream, &["--etcd", &etcd.url()]);
    assert_eq!(code, Some(0), "{said}");
    says(&said, "ok      control postgres", "reached");
    says(&said, "ok      guard postgres", "not installed");
    says(&said, "ok      lease cron/reports in postgres", "no leader");
    ticks::may_lead(&postgres, "postgres", "cron/reports");
    let token = postgres.value("SELECT token FROM fencegate.acquire('cron/reports', 'a', '1 hour')");
    let (_, said) = check(&folder, &upstream, &["--etcd", &etcd.url()]);
    says(&said, "ok      lease cron/reports in postgres", &format!("token {token}"));
    wait_until("only the session of this query is left", DEADLINE, || postgres.value(sessions) == "1");

    postgres.sql("CREATE ROLE warden LOGIN; GRANT pg_read_all_stats, pg_signal_backend TO warden");
    for (lost, named) in [
        ("SELECT 1", "run `fencegate init --role warden` there"),
        (
            "ALTER SCHEMA fencegate OWNER TO warden; GRANT USAGE ON SCHEMA fencegate_state TO warden; \
          GRANT ALL ON ALL TABLES IN SCHEMA fencegate_state TO warden; \
          GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencegate TO warden; \
          REVOKE DELETE ON fencegate_state.admission FROM warden",
            "in database postgres (DELETE on admission)",
        ),
        ("REVOKE pg_signal_backend FROM warden", "GRANT pg_signal_backend TO warden"),
    ] {
        postgres.sql(lost);
        let (code, said) = check_as("warden", &folder, &upstream, &["--etcd", &etcd.url()]);
        assert_eq!(code, Some(1), "{said}");
        says(&said, "failed  control postgres", named);
    }

    let [nobody, neither] = [Port::claim(), Port::claim()];
    let away = format!("http://127.0.0.1:{}", nobody.number());
    let (code, said) = check(&folder, &upstream, &["--etcd", &away]);
    assert_eq!(code, Some(1), "{said}");
    says(&said, "failed  etcd /cron/leader", &nobody.number().to_string());
    let (code, said) = check(&folder, &format!("postgres://127.0.0.1:{}", neither.number()), &["--etcd", &etcd.url()]);
    assert_eq!(code, Some(1), "{said}");
    says(&said, "failed  upstream", "check that PostgreSQL is running there");
}
