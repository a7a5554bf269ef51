//! A policy with an election needs an etcd.

use super::world::{POLICIES, WITHOUT_ELECTION, World};
use crate::support::guardian::Folder;
use crate::support::proxy::fencegate;
use crate::support::ticks::{self, WRITE, ok, refused, session};
use crate::support::{DEADLINE, Proxy, ProxyOptions};
use std::fs;

fn start(arguments: &[&str]) -> (Option<i32>, String) {
    let folder = Folder::new("settings");
    fs::write(folder.join("policies.yaml"), POLICIES).unwrap();
    let mut command = fencegate();
    command.args(["proxy", "--listen", "127.0.0.1:1", "--upstream", "postgres://127.0.0.1:1"]);
    command.args(["--control", "postgres://u@127.0.0.1:1/", "--policies", &folder.path().display().to_string()]);
    let output = command.args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn without_etcd_the_proxy_does_not_start() {
    for (arguments, message) in [
        (&[][..], "fencegate: resource `scheduler` names the election /cron/scheduler/leader: set --etcd"),
        (&["--etcd", "h:1"], "fencegate: --etcd or FENCEGATE_ETCD: `h:1` is not an etcd member"),
        (&["--etcd", "https://h:1", "--etcd-ca", "/nowhere.pem"], "fencegate: /nowhere.pem: cannot read the file"),
        (&["--etcd", "http://h:1", "--etcd-user", "u"], "fencegate: --etcd-user or FENCEGATE_ETCD_USER: needs"),
    ] {
        let (code, error) = start(arguments);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn a_reload_that_adds_an_election_without_etcd_is_refused() {
    let postgres = ticks::server();
    let mut proxy = Proxy::start(&postgres, ticks::POLICIES, &[]);
    ok(&mut session(&proxy.address(), 5), WRITE);
    proxy.write_policies(&POLICIES.replace("[public.ticks]", "[public.other]"));
    proxy.sighup();
    proxy.wait_for_log("reload_failed", DEADLINE);
    assert!(proxy.log().contains("names the election /cron/scheduler/leader"));
    refused(&mut session(&proxy.address(), 4), WRITE, "LF001");
    ok(&mut session(&proxy.address(), 6), WRITE);
}

#[test]
fn a_reload_adds_and_removes_etcd() {
    let world = World::start();
    let servers = format!("upstream: {}\ncontrol: {}\n", world.postgres.url(), world.postgres.control_url());
    let with_etcd = format!("{servers}etcd: {}\n", world.etcd.url());
    let options = ProxyOptions::default().policies(WITHOUT_ELECTION).settings(&servers);
    let mut proxy = Proxy::start_with(&world.postgres, &options);
    let first = world.stand("a");
    let mut writer = session(&proxy.address(), first);
    ok(&mut writer, WRITE);

    proxy.write_policies(POLICIES);
    proxy.reload_with(&with_etcd);
    ok(&mut writer, WRITE);
    refused(&mut session(&proxy.address(), first + 1000), WRITE, "LF005");
    // A database that was in use before etcd was configured follows the election too.
    let second = world.stand("b");
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    refused(&mut writer, WRITE, "LF001");

    proxy.reload_with(&servers);
    assert!(proxy.log().contains("names the election /cron/scheduler/leader: set --etcd"), "{}", proxy.log());
    refused(&mut session(&proxy.address(), second + 1000), WRITE, "LF005");
    proxy.write_policies(WITHOUT_ELECTION);
    proxy.reload_with(&servers);
    ok(&mut session(&proxy.address(), second + 1000), WRITE);
    assert!(!proxy.log().contains("applied=false"), "{}", proxy.log());
}
