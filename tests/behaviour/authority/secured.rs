//! etcd with TLS, client certificates and users.

use super::world::{ELECTION, POLICIES, World};
use crate::support::ticks::{self, WRITE, ok, refused, session};
use crate::support::{DEADLINE, Etcd, Proxy};

#[test]
fn tls_and_users() {
    let mut world = World { postgres: ticks::server(), etcd: Etcd::start_with_tls() };
    world.etcd.enable_users("/cron/");
    let file = |name: &str| world.etcd.certificates().file(name).display().to_string();
    let url = world.etcd.url();
    let [ca, certificate, key] = ["ca.pem", "client.pem", "client.key"].map(file);
    let start = |arguments: &[&str]| Proxy::start(&world.postgres, POLICIES, &[&["--etcd", &url], arguments].concat());
    let tls = ["--etcd-ca", &ca, "--etcd-cert", &certificate, "--etcd-key", &key];
    let user = |password| ["--etcd-user", "gate", "--etcd-password", password];
    let token = world.stand("a");

    for (arguments, reason) in [
        (user("pass word").to_vec(), "etcd"),
        ([&["--etcd-ca", &ca], &user("pass word")[..]].concat(), "etcd"),
        (tls.to_vec(), "etcd"),
        ([&tls[..], &user("wrong")].concat(), "authentication failed"),
    ] {
        let proxy = start(&arguments);
        let error = refused(&mut session(&proxy.address(), token), WRITE, "LF006");
        assert!(error.message().contains(reason), "{arguments:?}: {error:?}");
    }
    assert_eq!(world.epoch(), "");

    let proxy = start(&[&tls[..], &user("pass word")].concat());
    refused(&mut session(&proxy.address(), token + 1), WRITE, "LF005");
    let mut leader = session(&proxy.address(), token);
    ok(&mut leader, WRITE);
    // The watch works as well.
    let second = world.stand("b");
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    refused(&mut leader, WRITE, "LF001");
    assert!(!proxy.log().contains("pass word"));
    drop(proxy);

    // After a restart, etcd has forgotten all logins.
    let proxy = start(&[&tls[..], &user("pass word")].concat());
    ok(&mut session(&proxy.address(), second), WRITE);
    proxy.wait_for_log("leader_observed", DEADLINE);
    world.etcd.kill9();
    world.etcd.start_again();
    let third = world.etcd.put_new(&format!("{ELECTION}/c"));
    world.depose("b");
    proxy.wait_for_log(&format!("token={third}"), DEADLINE);
    let mut next = session(&proxy.address(), third);
    crate::support::wait_until("the next leader writes", DEADLINE, || {
        crate::support::wire::error_in(&next.query(WRITE)).is_none()
    });
}
