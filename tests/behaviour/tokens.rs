//! docs/lead/other-tokens.md is correct as far as it needs only PostgreSQL and etcd: its code runs unchanged, except
//! for ports and lease TTLs. tests/soak/tokens tests the rest.

use crate::authority::world::World;
use crate::support::page::{blocks, shell};
use crate::support::ticks::{self, WRITE, ok, refused, session};
use crate::support::wait::{DEADLINE, wait_until};
use crate::support::wire::Wire;
use std::process::{Command, Output, Stdio};

const PAGE: &str = include_str!("../../docs/lead/other-tokens.md");

#[test]
fn the_program_takes_the_single_key_of_etcd_and_its_token() {
    let world = World::start();
    let proxy = world.proxy();
    let programs = blocks(PAGE, "python");
    let program = programs.iter().find(|program| program.contains("kv/txn")).expect("a program for etcd");
    let program = program.replace("http://127.0.0.1:2379", &world.etcd.url()).replace("TTL=10", "TTL=3600");
    let take = || Command::new("python3").args(["-c", &program]).output().unwrap();
    let token_of = |output: &Output| -> i64 {
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{output:?}"))
    };
    let first = token_of(&take());
    let lost = take();
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert_eq!((lost.status.code(), said.as_str()), (Some(1), "another leads\n"));
    let mut old = session(&proxy.address(), first);
    ok(&mut old, WRITE);
    world.etcd.revoke_all();
    let second = token_of(&take());
    ok(&mut session(&proxy.address(), second), WRITE);
    refused(&mut old, WRITE, "LF001");
}

#[test]
fn the_lock_of_etcdctl_has_its_token_in_its_key() {
    let world = World::start();
    let proxy = world.proxy();
    let commands = blocks(PAGE, "sh");
    let command = commands.iter().find(|command| command.contains("etcdctl lock")).expect("a command for etcd");
    let (_, port) = proxy.address().host_and_port();
    let command =
        command.replace("port=6432 user=app dbname=app", &format!("port={port} user=postgres dbname=postgres"));
    world.stand("another");
    let mut lock = shell(&command);
    lock.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", world.etcd.url());
    let lock = lock.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it waits for the lock", DEADLINE, || world.candidates() == 2);
    // By now the revision is higher than the create revision of the lock's key.
    world.depose("another");
    let output = lock.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "INSERT 0 1\n", "{output:?}");
}

#[test]
fn the_statement_takes_an_advisory_lock_and_its_token() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let statements = blocks(PAGE, "sql");
    let [sequence, take] = statements.as_slice() else { panic!("{statements:?}") };
    postgres.sql(sequence);
    let login = || Wire::login(&proxy.address(), "postgres", "postgres");
    let token = |wire: &mut Wire| wire.rows(take).unwrap().pop().map(|mut row| row.pop().unwrap().unwrap());
    let (mut holder, mut next) = (login(), login());
    assert_eq!(token(&mut holder).as_deref(), Some("1"));
    ok(&mut holder, WRITE);
    let mut same_leader = session(&proxy.address(), 1);
    ok(&mut same_leader, WRITE);
    for _ in 0..2 {
        assert_eq!(token(&mut next), None);
    }
    refused(&mut next, WRITE, "LF002");
    drop(holder);
    let mut taken = None;
    wait_until("the lock is free", DEADLINE, || {
        taken = token(&mut next);
        taken.is_some()
    });
    assert_eq!(taken.as_deref(), Some("2"), "a session that does not get the lock draws no number");
    ok(&mut next, WRITE);
    refused(&mut same_leader, WRITE, "LF001");
}
