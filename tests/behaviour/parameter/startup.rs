//! The value that a session has from its start and that RESET restores.

use super::{WRITE, presented, start, start_session};
use crate::support::fenced::ok;
use crate::support::programs;
use crate::support::wire::error_in;
use std::process::Command;

#[test]
fn from_the_start() {
    let world = start();
    let cases: [(&[(&str, &str)], &str); 13] = [
        (&[], ""),
        (&[("lease.fence", "47")], "47"),
        (&[("Lease.Fence", "47")], "47"),
        (&[("options", "-c lease.fence=47")], "47"),
        (&[("options", "-clease.fence=46 --lease.fence=47 -c work_mem=5MB")], "47"),
        (&[("user", "leader")], "31"),
        (&[("user", "leader"), ("options", "-c lease.fence=47")], "47"),
        (&[("options", r"-c lease.fence=other=3,\ scheduler=47")], "47"),
        // Repeated settings follow the server's rules.
        (&[("lease.fence", "46"), ("lease.fence", "47")], "47"),
        (&[("lease.fence", "46"), ("LEASE.FENCE", "47")], "47"),
        (&[("lease.fence", "47"), ("options", "-c lease.fence=46")], "47"),
        (&[("options", "-c lease.fence=46"), ("options", "--lease.fence=47")], "47"),
        (&[("options", "-c lease.fence=46"), ("options", "-c work_mem=5MB")], ""),
    ];
    for (parameters, expected) in cases {
        let (mut wire, _) = start_session(&world, parameters);
        assert_eq!(presented(&wire.query(WRITE)), expected, "{parameters:?}");
        ok(&mut wire, "SET lease.fence = 48");
        assert_eq!(presented(&wire.query(WRITE)), "48", "{parameters:?}");
        ok(&mut wire, "RESET ALL");
        assert_eq!(presented(&wire.query(WRITE)), expected, "{parameters:?}");
    }
}

#[test]
fn no_token_at_the_start_is_fatal() {
    let world = start();
    let cases: [&[(&str, &str)]; 4] = [
        &[("lease.fence", "x")],
        &[("options", "-c lease.fence=0")],
        &[("lease.fence", "a=1,a=2")],
        &[("user", "odd")],
    ];
    for parameters in cases {
        let (mut wire, frames) = start_session(&world, parameters);
        let error = error_in(&frames).unwrap();
        assert_eq!((error.severity(), error.code()), ("FATAL", "LF003"), "{parameters:?}");
        assert!(!error.hint().is_empty());
        assert_eq!(wire.read_to_end(), []);
    }
    // A valid value of the connection takes precedence over the role's value.
    let (mut wire, _) = start_session(&world, &[("user", "odd"), ("lease.fence", "47")]);
    assert_eq!(presented(&wire.query(WRITE)), "47");
}

#[test]
fn libpq_options() {
    let world = start();
    let (host, port) = world.proxy.address().host_and_port();
    let conninfo = format!("host={host} port={port} user=postgres dbname=postgres options=-clease.fence=42");
    let told = |command: &mut Command| {
        let output = command.args(["-v", "VERBOSITY=verbose", "-Atc", WRITE]).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let mut psql = programs::psql(&world.proxy.address(), "postgres");
    let error = told(psql.arg(&conninfo));
    assert!(error.contains("LF001") && error.contains("presented=42"), "{error}");
    let mut psql = programs::psql(&world.proxy.address(), "postgres");
    let error = told(psql.env("PGOPTIONS", "-c lease.fence=43"));
    assert!(error.contains("LF001") && error.contains("presented=43"), "{error}");
}

/// As in PostgreSQL, the more specific setting wins, and only a login reads the settings.
#[test]
fn settings_of_roles_and_databases() {
    let world = start();
    let mut before = start_session(&world, &[("user", "leader")]).0;
    for (alter, expected) in [
        ("ALTER DATABASE postgres SET lease.fence = '21'", ["21", "31"]),
        ("ALTER ROLE ALL SET lease.fence = '20'", ["21", "31"]),
        ("ALTER ROLE leader IN DATABASE postgres SET lease.fence = 'scheduler=32'", ["21", "32"]),
        ("ALTER ROLE leader RESET lease.fence", ["21", "32"]),
        ("ALTER ROLE leader IN DATABASE postgres RESET ALL", ["21", "21"]),
        ("ALTER DATABASE postgres RESET lease.fence", ["20", "20"]),
    ] {
        world.postgres.sql(alter);
        for (user, expected) in ["postgres", "leader"].into_iter().zip(expected) {
            let mut wire = start_session(&world, &[("user", user)]).0;
            assert_eq!(presented(&wire.query(WRITE)), expected, "{user} after {alter}");
            ok(&mut wire, "SET lease.fence = 48; RESET ALL");
            assert_eq!(presented(&wire.query(WRITE)), expected, "{user} after {alter}");
        }
        assert_eq!(presented(&before.query(WRITE)), "31", "{alter}");
        ok(&mut before, "RESET lease.fence");
        assert_eq!(presented(&before.query(WRITE)), "31", "{alter}");
    }
    let mut wire = start_session(&world, &[("lease.fence", "5")]).0;
    world.postgres.sql("ALTER ROLE leader SET lease.fence = '31'");
    for become_leader in ["SET ROLE leader", "SET SESSION AUTHORIZATION leader"] {
        ok(&mut wire, become_leader);
        assert_eq!(presented(&wire.query(WRITE)), "5", "{become_leader}");
        ok(&mut wire, "RESET lease.fence");
        assert_eq!(presented(&wire.query(WRITE)), "5", "{become_leader}");
    }
}
