//! A counter in the script that acquires the lock.

use super::{Fence, PAGE};
use crate::support::guardian::{Folder, Port, Program};
use crate::support::link::Link;
use crate::support::page::{blocks, shell};
use crate::support::programs::run;
use crate::support::ticks::{WRITE, ok};
use crate::support::wait::{DEADLINE, wait_until};
use std::fs;
use std::process::Command;

struct Redis {
    // Before the folder: fields are dropped in this order.
    _server: Program,
    folder: Folder,
    port: Port,
}

impl Redis {
    fn start(arguments: &[&str]) -> Self {
        let (folder, port) = (Folder::new("redis"), Port::claim());
        let number = port.number().to_string();
        let directory = folder.path().display().to_string();
        let command = ["redis-server", "--bind", "127.0.0.1", "--port", &number, "--dir", &directory, "--save", ""];
        let server = Program::start(&[&command, arguments].concat(), &folder.join("log"), "KILL");
        let [script] = blocks(PAGE, "lua").try_into().expect("one script");
        fs::write(folder.join("acquire.lua"), script).unwrap();
        let redis = Self { _server: server, folder, port };
        wait_until("Redis answers", DEADLINE, || redis.cli(&["PING"]).output().unwrap().stdout == b"PONG\n");
        redis
    }

    fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.number().to_string()]).args(arguments);
        command
    }

    fn answer(&self, arguments: &[&str]) -> String {
        String::from_utf8(run(&mut self.cli(arguments)).stdout).unwrap().trim().to_owned()
    }

    /// Runs the page's command. Returns the token that it prints.
    fn acquire(&self) -> Option<i64> {
        let commands = blocks(PAGE, "sh");
        let command = commands.iter().find(|command| command.contains("redis-cli")).expect("a command for Redis");
        let command = command.replace("6379", &self.port.number().to_string());
        let printed = run(shell(&command).current_dir(self.folder.path())).stdout;
        String::from_utf8(printed).unwrap().trim().parse().ok()
    }

    /// Makes the lock expire.
    fn end_lock(&self) {
        assert_eq!(self.answer(&["PEXPIRE", "{scheduler}:lock", "0"]), "1", "the lock was held");
    }
}

#[test]
fn the_script_takes_the_lock_and_its_token() {
    let (redis, fence) = (Redis::start(&[]), Fence::start());
    let first = redis.acquire().expect("nobody holds it");
    assert_eq!(redis.acquire(), None, "it is held");
    let lives = redis.answer(&["PTTL", "{scheduler}:lock"]).parse().unwrap_or(0);
    assert!((1..=10_000).contains(&lives), "{lives}");
    redis.end_lock();
    let second = redis.acquire().expect("nobody holds it any more");
    assert_eq!(second, first + 1, "a failed attempt must not use a number");
    fence.follows(first, second);
}

/// The promoted replica has not received the last holder, so the next one gets the same number. Both count as one
/// writer.
#[test]
fn after_a_failover_two_holders_have_one_number_and_both_write() {
    let (primary, fence) = (Redis::start(&[]), Fence::start());
    let link = Link::to(primary.port.number());
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &link.port().to_string()]);
    let earlier = primary.acquire().expect("nobody holds it");
    primary.end_lock();
    wait_until("the replica has heard of the holder before", DEADLINE, || {
        replica.answer(&["GET", "{scheduler}:token"]) == earlier.to_string()
            && replica.answer(&["EXISTS", "{scheduler}:lock"]) == "0"
    });
    link.cut();
    let one = primary.acquire().expect("nobody holds it");
    replica.answer(&["REPLICAOF", "NO", "ONE"]);
    let other = replica.acquire().expect("it does not know of the holder");
    assert_eq!((one, other), (earlier + 1, earlier + 1));
    let mut writers = [fence.writer(one), fence.writer(other)];
    writers.iter_mut().for_each(|writer| ok(writer, WRITE));
}
