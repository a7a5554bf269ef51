//! A managed server, as in docs/run/deploy.md: from installation to an enforced fence, without a superuser, with TLS
//! and SCRAM.

use crate::support::certificates::{Authority, text};
use crate::support::guardian::Folder;
use crate::support::programs::psql;
use crate::support::proxy::fencegate;
use crate::support::{Address, DEADLINE, Options, Postgres, Proxy, ProxyOptions, wait_until};
use std::fs;
use std::process::{Command, Output};

const POLICY: &str =
    "version: 1\nresources:\n  - {name: scheduler, mode: observe, tables: [public.ticks]}\ndatabases: [app]\n";
const UPDATE: &str = "UPDATE ticks SET run_by = 'app'";

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// A server that requires TLS and a password, its database `app`, and a master role without superuser privileges.
struct World {
    // Before the server: fields are dropped in this order.
    proxy: Proxy,
    postgres: Postgres,
    folder: Folder,
    root: String,
    /// A reload reads their files again.
    _authorities: [Authority; 2],
}

impl World {
    fn start() -> Self {
        let (authority, other) = (Authority::new("service"), Authority::new("ours"));
        let options = Options::default()
            .tls(&authority.sign_local("server"))
            .hba("hostssl all all 127.0.0.1/32 scram-sha-256")
            .hba("host all all 127.0.0.1/32 reject");
        let postgres = Postgres::start(options);
        postgres.sql("CREATE ROLE master LOGIN CREATEROLE CREATEDB PASSWORD 'm'");
        postgres.sql("CREATE DATABASE app OWNER master");
        let folder = Folder::new("managed");
        fs::write(folder.join("policy.yaml"), POLICY).unwrap();
        let root = text(&authority.pem());
        let prepare = "CREATE ROLE fencegate LOGIN PASSWORD 'f'; CREATE ROLE app LOGIN PASSWORD 'a'; \
            CREATE TABLE ticks (tick text, run_by text); INSERT INTO ticks VALUES ('12:00'); GRANT ALL ON ticks TO app";
        as_role(&postgres.address(), "master", "m", &[&verified(&root)], prepare).unwrap();
        let control = format!("postgres://master:m@127.0.0.1:{}/app?{}", postgres.port(), in_url(&root));
        succeeds(&["init", "--control", &control, "--role", "fencegate"]);
        let policies = folder.path().to_str().unwrap();
        succeeds(&["policy", "check", policies, "--database", &control]);
        assert!(succeeds(&["policy", "explain", policies, "--database", &control]).contains("public.ticks"));
        let own = other.sign_local("proxy");
        let (pem, key) = (text(&own.pem), text(&own.key));
        let upstream = format!("postgres://127.0.0.1:{}", postgres.port());
        let control = format!("postgres://fencegate:f@127.0.0.1:{}/", postgres.port());
        let arguments = ["--upstream-sslmode", "verify-full", "--upstream-sslrootcert", &root];
        let arguments = [&arguments[..], &["--tls-cert", &pem, "--tls-key", &key]].concat();
        let check = ["proxy", "--check", "--upstream", &upstream, "--control", &control, "--policies", policies];
        let checked = succeeds(&[&check[..], &arguments].concat());
        assert!(checked.contains("ok      control app: reached"), "{checked}");
        let options = ProxyOptions::default().policies(POLICY).control(&control).arguments(&arguments);
        let proxy = Proxy::start_with(&postgres, &options);
        World { proxy, postgres, folder, root, _authorities: [authority, other] }
    }

    /// Writes as the application, through the proxy, with `token` in its options.
    fn application(&self, token: &str) -> Result<String, String> {
        let options = if token.is_empty() { String::new() } else { format!("options=-clease.fence={token}") };
        as_role(&self.proxy.address(), "app", "a", &["sslmode=require", "channel_binding=disable", &options], UPDATE)
    }
}

fn verified(root: &str) -> String {
    format!("sslmode=verify-full sslrootcert={root}")
}

fn in_url(root: &str) -> String {
    verified(root).replace(' ', "&")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = fencegate().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    said(&output)
}

/// The output or errors of psql.
fn as_role(address: &Address, role: &str, password: &str, parameters: &[&str], sql: &str) -> Result<String, String> {
    let mut command: Command = psql(address, "app");
    command.env("PGUSER", role).env("PGPASSWORD", password).env("HOME", "/nonexistent");
    let output = command.args(["-c", sql, "-d", &format!("dbname=app {}", parameters.join(" "))]).output().unwrap();
    if output.status.success() { Ok(said(&output)) } else { Err(said(&output)) }
}

#[test]
fn from_installation_to_enforcement() {
    let mut world = World::start();
    let binding = as_role(&world.proxy.address(), "app", "a", &["sslmode=require"], UPDATE).unwrap_err();
    assert!(binding.contains("channel_binding=disable"), "{binding}");
    // No write is rejected, but the log names those that would be.
    world.application("").unwrap();
    wait_until("it is logged", DEADLINE, || world.proxy.log().contains("write_would_be_rejected"));
    world.proxy.write_policies(&POLICY.replace("mode: observe, ", ""));
    fs::write(world.folder.join("policy.yaml"), POLICY.replace("mode: observe, ", "")).unwrap();
    world.proxy.sighup();
    wait_until("the fence is enforced", DEADLINE, || world.application("").is_err());
    wait_until("the policies are recorded", DEADLINE, || world.application("2").is_ok());
    for (token, expected) in [("", "this session has no token for it"), ("1", "is stale: the highest is 2")] {
        let refused = world.application(token).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
    // The control role owns the guard's functions, and the master role owns the tables.
    let policies = world.folder.path().to_str().unwrap();
    let around = || as_role(&world.postgres.address(), "app", "a", &[&verified(&world.root)], UPDATE);
    around().unwrap();
    for (who, password, installed) in [("fencegate", "f", 1), ("master", "m", 0)] {
        let port = world.postgres.port();
        let control = format!("postgres://{who}:{password}@127.0.0.1:{port}/app?{}", in_url(&world.root));
        let arguments = ["guard", "install", "--control", &control, "--policies", policies];
        let output = fencegate().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(installed), "{who}: {}", said(&output));
    }
    let refused = around().unwrap_err();
    assert!(refused.contains("this session has no token for it"), "{refused}");
    world.application("2").unwrap();
}
