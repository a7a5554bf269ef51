//! `fencegate leases` lists the leaders.

use super::Leases;
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use crate::support::{Options, Postgres, fenced, ticks};
use std::process::Output;

fn list(arguments: &[&str]) -> Output {
    fencegate().arg("leases").args(arguments).output().unwrap()
}

/// The lines below the header, in words, without the end of the leases.
fn lines(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let words = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    assert!(text.starts_with("ELECTION"), "{text}");
    text.lines().skip(1).map(words).collect()
}

#[test]
fn leases_of_a_database_are_listed() {
    let postgres = Postgres::start(Options::default());
    fenced::init(&postgres, "postgres");
    ticks::may_lead(&postgres, "postgres", "*");
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port());
    assert_eq!(lines(&list(&[&url])), [""; 0]);
    for call in [
        "acquire('b', 'second', '1 min')",
        "acquire('a', 'first#0123456789abcdef', '1 min')",
        "acquire('gone', 'third', '1 min')",
        "release('gone', 3)",
        "acquire(E'two\\nlines', 'fourth', '1 min')",
    ] {
        postgres.sql(&format!("SELECT * FROM fencegate.{call}"));
    }
    let listed = list(&[&url]);
    assert_eq!(lines(&listed), ["a first 2", "b second 1", "two lines fourth"]);
    let expires =
        "SELECT to_char(expires AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') FROM fencegate.leader('b')";
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("b ") && line.ends_with(&postgres.value(expires))), "{text}");
}

#[tokio::test]
async fn a_role_sees_the_leases_that_it_may_lead() {
    let leases = Leases::new().await;
    let role = format!("{}_jobs", leases.database);
    leases.run(&format!("CREATE ROLE {role} LOGIN")).await;
    leases.may_lead(&role, "job/*").await;
    for election in ["job/1", "cron"] {
        leases.call(&format!("acquire('{election}', 'a', '1 min')")).await;
    }
    for (user, seen) in [(leases.app(), "cron,job/1"), (role, "job/1"), (leases.control(), "cron,job/1")] {
        let session = crate::fence::server::connect(&leases.config(&user)).await;
        let query = "SELECT string_agg(election, ',' ORDER BY election) FROM fencegate.leases()";
        let row = session.query_one(query, &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), seen, "{user}");
    }
}

#[test]
fn leaders_in_etcd_are_listed() {
    let mut server = Etcd::start();
    assert_eq!(lines(&list(&[&server.url()])), [""; 0]);
    let lease = || {
        let granted = String::from_utf8(run(&mut server.etcdctl(&["lease", "grant", "600"])).stdout).unwrap();
        granted.split(' ').nth(1).unwrap().trim_start_matches('0').to_owned()
    };
    let put = |key: &str, value: &str, lease: &str| {
        run(&mut server.etcdctl(&["put", key, value, &format!("--lease={lease}")]));
    };
    let (first, second) = (lease(), lease());
    put(&format!("/b/leader/{first}"), "first", &first);
    put(&format!("/b/leader/{second}"), "waits", &second);
    put(&format!("a/{second}"), "second", &second);
    put("/other/key", "no candidate", &second);
    run(&mut server.etcdctl(&["put", &format!("/c/{first}"), "without a lease"]));
    assert_eq!(lines(&list(&[&server.url()])), ["/b/leader first 2", "a second 4"]);
    server.enable_users("/");
    let output = list(&[&server.url()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let user = ["--etcd-user", "root", "--etcd-password", "secret"];
    assert_eq!(lines(&list(&[&[server.url().as_str()], &user[..]].concat())), ["/b/leader first 2", "a second 4"]);
}

#[test]
fn a_failed_listing_is_reported() {
    for (arguments, code, text) in [
        (&[][..], 2, "URL"),
        (&["postgres://h"], 2, "has no user"),
        (&["http://"], 2, "is not an etcd member"),
        (&["http://127.0.0.1:1", "--etcd-user", "u"], 2, "needs etcd_password or etcd_password_file"),
        (&["postgres://u@127.0.0.1:1/d"], 1, "did not answer"),
    ] {
        let output = list(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && told.contains(text), "{arguments:?}: {told}");
    }
}
