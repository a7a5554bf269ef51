//! Lists with different hosts: silent, closed, unknown to the control role, standbys.

use super::{PRIMARY, World, cluster, control, options};
use crate::hosts::Silent;
use crate::metrics::page::get;
use crate::metrics::world::http_address;
use crate::support::guardian::{Folder, Port};
use crate::support::proxy::ProxyOptions;
use crate::support::ticks::{self, WRITE, ok, refused, session};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Proxy, Wire, wait_until};

#[test]
fn a_dead_first_host_does_not_matter() {
    let (postgres, silent, closed) = (ticks::server(), Silent::new(), Port::claim());
    for dead in [silent.port, closed.number()] {
        let hosts = format!("127.0.0.1:{dead},127.0.0.1:{}", postgres.port());
        for target in ["", "?target_session_attrs=primary"] {
            let options = ProxyOptions::default()
                .policies(ticks::POLICIES)
                .upstream(&format!("postgres://{hosts}{target}"))
                .control(&control(&hosts));
            let proxy = Proxy::start_with(&postgres, &options);
            ok(&mut session(&proxy.address(), 1), WRITE);
        }
    }
}

#[test]
fn a_server_that_the_control_role_cannot_look_at_is_never_the_primary() {
    let (postgres, closed) = (ticks::server(), Port::claim());
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", closed.number(), postgres.port());
    // With target_session_attrs=any, sessions may use an unknown server, because it may be a standby.
    let options = ProxyOptions::default()
        .upstream(&format!("postgres://{hosts}"))
        .control(&format!("postgres://no_such_role@{hosts}/postgres"));
    let proxy = Proxy::start_with(&postgres, &options);
    proxy.wait_for_log("server_unknown", crate::support::DEADLINE);
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    let error = error_in(&wire.start(&[("user", "postgres"), ("database", "postgres")], "")).expect("a refusal");
    assert_eq!((error.severity(), error.code()), ("FATAL", "57P03"), "{error:?}");
    let detail = error.detail();
    assert!(detail.contains(&format!("127.0.0.1:{} is unknown", postgres.port())), "{detail}");
    assert!(!detail.contains("no_such_role"), "{detail}");
}

#[test]
fn a_control_role_that_no_server_lets_in_is_the_reason() {
    let cluster = cluster();
    let control = format!("postgres://no_such_role@{}/postgres", cluster.hosts());
    for target in [PRIMARY, ""] {
        let proxy = Proxy::start_with(&cluster[0], &options(&cluster, target, &[]).control(&control));
        let http = http_address(|| proxy.log());
        let says = "no server lets the control role log in";
        wait_until("the reason is known", DEADLINE, || get(http, "/readyz").body.contains(says));
        let body = get(http, "/readyz").body;
        assert!(body.contains("role \"no_such_role\" does not exist"), "{body}");
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        let error = error_in(&wire.start(&[("user", "postgres"), ("database", "postgres")], "")).expect("a refusal");
        assert_eq!(error.code(), "57P03", "{error:?}");
        assert!(error.hint().contains("check the user and the password in the proxy's setting control"), "{error:?}");
        assert!(!format!("{error:?}").contains("no_such_role"), "{error:?}");
    }
}

#[test]
fn sessions_use_a_standby_where_the_target_says_so() {
    for target in ["standby", "prefer-standby"] {
        let world = World::start_with(&format!("target_session_attrs={target}"), &["--connect-wait", "60s"]);
        let mut wire = Wire::login(&world.proxy.address(), "postgres", "postgres");
        assert_eq!(world.server_of(&mut wire), 1, "{target}");
        refused(&mut wire, "CREATE TABLE t ()", "25006");
    }
}

#[test]
fn without_a_target_sessions_prefer_the_primary() {
    let cluster = cluster();
    let backwards = format!("127.0.0.1:{},127.0.0.1:{}", cluster.port(1), cluster.port(0));
    let options = ProxyOptions::default()
        .policies(ticks::POLICIES)
        .upstream(&format!("postgres://{backwards}"))
        .control(&control(&backwards));
    let world = World { proxy: Proxy::start_with(&cluster[0], &options), cluster };
    assert_eq!(world.server_of_a_session(), 0);
    ok(&mut session(&world.proxy.address(), 1), WRITE);
    world.cluster.cut_off(0);
    // The proxy logs `server_unknown` before the list of servers changes, and this after it.
    world.proxy.wait_for_log("upstream_without_primary", crate::support::DEADLINE);
    assert_eq!(world.server_of_a_session(), 1, "a standby is used if there is no primary");
}

/// A successor has found the primary before it is ready for clients, and reports no server as unreachable meanwhile.
#[test]
fn a_successor_takes_over_with_a_list() {
    let folder = Folder::new("take-over");
    let socket = folder.join("socket").display().to_string();
    let arguments = ["--take-over", &socket];
    let world = World::start(&arguments);
    world.wait_for_primary(0);
    let successor = Proxy::start_with(&world.cluster[0], &options(&world.cluster, PRIMARY, &arguments));
    ok(&mut session(&successor.address(), 1), WRITE);
    assert!(successor.log().contains("sockets_taken_over"), "{}", successor.log());
    for proxy in [&world.proxy, &successor] {
        assert!(!proxy.log().contains("upstream_unreachable"), "{}", proxy.log());
    }
}
