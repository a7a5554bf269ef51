//! The users and roles of etcd change while a proxy and a leader run: etcd rejects outdated logins, and they are
//! renewed.

use super::world::{ELECTION, POLICIES, World};
use crate::support::guardian::{Folder, Program};
use crate::support::proxy::BINARY;
use crate::support::ticks::{self, WRITE, ok, session};
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Etcd, Proxy, ProxyOptions, wait_until};
use std::fs;

/// A leader that has won, with its token.
struct Lead {
    program: Program,
    folder: Folder,
    token: i64,
}

impl Lead {
    /// The lease outlives the test, so that only the leader itself deletes the key.
    fn start(etcd: &Etcd, access: &[&str]) -> Self {
        let (folder, url) = (Folder::new("users"), etcd.url());
        let token = folder.join("token").display().to_string();
        let lead = [BINARY, "lead", "--etcd", &url, "--election", ELECTION, "--ttl", "600"];
        let command =
            ["--", "sh", "-c", "echo $FENCE_TOKEN >\"$0.new\"; mv \"$0.new\" \"$0\"; exec sleep 1000", &token];
        let program = Program::start(&[&lead, access, &command].concat(), &folder.join("log"), "KILL");
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        let read = || fs::read_to_string(&token).ok()?.trim().parse().ok();
        let token = wait_for(format!("it leads: {}", log()), DEADLINE, read);
        Self { program, folder, token }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

/// After every change of roles, the next leader's first write is admitted, and the previous leader deletes its key.
fn change_roles_under(world: &World, proxy: &Proxy, access: &[&str]) {
    for _ in 0..2 {
        let mut lead = Lead::start(&world.etcd, access);
        world.etcd.change_roles();
        ok(&mut session(&proxy.address(), lead.token), WRITE);
        world.etcd.change_roles();
        lead.program.signal("TERM");
        lead.program.wait();
        assert_eq!(world.candidates(), 0, "{}", lead.log());
    }
}

fn with_passwords(etcd: Etcd) {
    let mut world = World { postgres: ticks::server(), etcd };
    world.etcd.enable_users("/cron/");
    world.etcd.add_user("leader", Some("first"), "/cron/");
    let folder = Folder::new("users");
    let [of_gate, of_leader] = ["gate", "leader"].map(|user| folder.join(user).display().to_string());
    fs::write(&of_gate, "pass word\n").unwrap();
    fs::write(&of_leader, "first\n").unwrap();
    let url = world.etcd.url();
    let gate = ["--etcd", &url, "--etcd-user", "gate", "--etcd-password-file", &of_gate];
    let proxy = Proxy::start(&world.postgres, POLICIES, &gate);
    let leader = ["--etcd-user", "leader", "--etcd-password-file", &of_leader];
    change_roles_under(&world, &proxy, &leader);

    // Passwords change without a restart of any program.
    let mut lead = Lead::start(&world.etcd, &leader);
    for (user, file) in [("gate", &of_gate), ("leader", &of_leader)] {
        fs::write(file, "second\n").unwrap();
        world.etcd.change_password(user, "second");
    }
    ok(&mut session(&proxy.address(), lead.token), WRITE);
    lead.program.signal("TERM");
    lead.program.wait();
    assert_eq!(world.candidates(), 0, "{}", lead.log());
}

#[test]
fn with_json_web_tokens() {
    with_passwords(Etcd::start_with_jwt());
}

#[test]
fn with_simple_tokens() {
    with_passwords(Etcd::start());
}

#[test]
fn with_certificates() {
    let mut world = World { postgres: ticks::server(), etcd: Etcd::start_with_tls() };
    world.etcd.enable_users("/cron/");
    world.etcd.add_user("client", None, "/cron/");
    let file = |name: &str| world.etcd.certificates().file(name).display().to_string();
    let [ca, certificate, key] = ["ca.pem", "client.pem", "client.key"].map(file);
    let access = ["--etcd-ca", &ca, "--etcd-cert", &certificate, "--etcd-key", &key];
    let url = world.etcd.url();
    let proxy = Proxy::start(&world.postgres, POLICIES, &[&["--etcd", &url], &access[..]].concat());
    change_roles_under(&world, &proxy, &access);
}

/// A reload replaces the user. The previous user is deleted.
#[test]
fn another_user_of_the_proxy() {
    let mut world = World { postgres: ticks::server(), etcd: Etcd::start() };
    world.etcd.enable_users("/cron/");
    world.etcd.add_user("next", Some("p"), "/cron/");
    let settings = |user: &str, password: &str| {
        let (postgres, etcd) = (&world.postgres, world.etcd.url());
        let [upstream, control] = [postgres.url(), postgres.control_url()];
        format!(
            "upstream: {upstream}\ncontrol: {control}\netcd: {etcd}\netcd_user: {user}\netcd_password: {password}\n"
        )
    };
    let options = ProxyOptions::default().policies(POLICIES).settings(&settings("gate", "pass word"));
    let mut proxy = Proxy::start_with(&world.postgres, &options);
    let leader = ["--etcd-user", "next", "--etcd-password", "p"];
    let mut first = Lead::start(&world.etcd, &leader);
    ok(&mut session(&proxy.address(), first.token), WRITE);
    proxy.write_settings(&settings("next", "p"));
    proxy.sighup();
    proxy.wait_for_log("policies_loaded", DEADLINE);
    world.etcd.delete_user("gate");
    first.program.signal("TERM");
    first.program.wait();
    let second = Lead::start(&world.etcd, &leader);
    ok(&mut session(&proxy.address(), second.token), WRITE);
}

/// The settings have a user before etcd requires one.
#[test]
fn users_that_are_enabled_later() {
    let mut world = World::start();
    let user = ["--etcd", &world.etcd.url(), "--etcd-user", "gate", "--etcd-password", "pass word"];
    let proxy = Proxy::start(&world.postgres, POLICIES, &user);
    let first = world.stand("a");
    ok(&mut session(&proxy.address(), first), WRITE);
    world.etcd.enable_users("/cron/");
    world.depose("a");
    let second = world.stand("b");
    wait_until("the next leader is seen", DEADLINE, || proxy.log().contains(&format!("token={second}")));
    ok(&mut session(&proxy.address(), second), WRITE);
}
