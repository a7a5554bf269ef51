//! Debian's PgBouncer in front of a proxy, and between a proxy and the server.

use crate::support::fenced::{Fenced, code, init, ok, value};
use crate::support::guardian::{Folder, Port, Program};
use crate::support::message::tagged;
use crate::support::postgres::{give_to_server, server_command};
use crate::support::wire::error_in;
use crate::support::{Address, DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::path::Path;

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (n int)";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const WRITE: &str = "INSERT INTO jobs VALUES (1)";

struct PgBouncer {
    _program: Program,
    port: Port,
    folder: Folder,
}

impl PgBouncer {
    /// Starts PgBouncer in front of this address, with these lines of configuration.
    fn before(server: &Address, settings: &str) -> Self {
        let (folder, port) = (Folder::new("pgbouncer"), Port::claim());
        let (host, server_port) = server.host_and_port();
        let users = folder.join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let configuration = format!(
            "[databases]\n* = host={host} port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\n{settings}\n",
            port.number(),
            users.display()
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, configuration).unwrap();
        let program = if Path::new("/usr/sbin/pgbouncer").exists() { "/usr/sbin/pgbouncer" } else { "pgbouncer" };
        give_to_server(folder.path());
        let mut command = server_command(Path::new(program));
        command.push(file.display().to_string());
        let program = Program::start(&command, &folder.join("log"), "KILL");
        let bouncer = Self { _program: program, port, folder };
        wait_until("PgBouncer listens", DEADLINE, || Wire::connect(&bouncer.address()).is_ok());
        bouncer
    }

    fn address(&self) -> Address {
        Address::Tcp(([127, 0, 0, 1], self.port.number()).into())
    }

    fn url(&self) -> String {
        format!("postgres://127.0.0.1:{}", self.port.number())
    }

    fn login(&self) -> Wire {
        Wire::login(&self.address(), "postgres", "postgres")
    }

    /// The error of a login with this startup parameter, if any; the session otherwise.
    fn login_with(&self, name: &str, value: &str) -> Result<Wire, String> {
        let mut wire = Wire::connect(&self.address()).unwrap();
        let frames = wire.start(&[("user", "postgres"), ("database", "postgres"), (name, value)], "");
        error_in(&frames).map_or(Ok(wire), |error| Err(error.message().to_owned()))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }
}

fn fenced(policies: &str) -> Fenced {
    Fenced::start(SCHEMA, policies)
}

fn rows(world: &Fenced) -> String {
    world.postgres.value("SELECT count(*) FROM jobs")
}

/// The ways of sending a token at login.
const AT_LOGIN: [(&str, &str); 2] = [("options", "-c lease.fence=47"), ("lease.fence", "47")];

#[test]
fn before_a_proxy_set_after_the_login_presents_the_token() {
    let world = fenced(POLICIES);
    let bouncer = PgBouncer::before(&world.proxy.address(), "pool_mode = session");
    let (mut old, mut new) = (bouncer.login(), bouncer.login());
    ok(&mut old, "SET lease.fence = 47");
    ok(&mut old, WRITE);
    ok(&mut new, "SET lease.fence = 48");
    ok(&mut new, WRITE);
    assert_eq!(code(&mut old, WRITE), "LF001");
    assert_eq!(rows(&world), "2");
}

/// `DISCARD ALL` resets the token between two clients, by default.
#[test]
fn before_a_proxy_the_next_client_of_a_server_connection_finds_no_token() {
    let world = fenced(POLICIES);
    let bouncer = PgBouncer::before(&world.proxy.address(), "pool_mode = session\ndefault_pool_size = 1");
    let mut first = bouncer.login();
    let pid = value(&mut first, "SELECT pg_backend_pid()");
    ok(&mut first, "SET lease.fence = 47");
    ok(&mut first, WRITE);
    first.send(&tagged(b'X', b""));
    first.read_to_end();
    let mut second = bouncer.login();
    assert_eq!(value(&mut second, "SELECT pg_backend_pid()"), pid, "PgBouncer opened another connection");
    assert_eq!(code(&mut second, WRITE), "LF002");
    assert_eq!(rows(&world), "1");
}

#[test]
fn before_a_proxy_a_token_at_login_is_refused() {
    let world = fenced(POLICIES);
    let bouncer = PgBouncer::before(&world.proxy.address(), "pool_mode = session");
    for (name, token) in AT_LOGIN {
        let error = bouncer.login_with(name, token).err();
        assert_eq!(error, Some(format!("unsupported startup parameter: {name}")), "{}", bouncer.log());
    }
}

/// PgBouncer ignores the parameter as its setting requires, and fencegate never sees it.
#[test]
fn before_a_proxy_a_token_at_login_that_pgbouncer_ignores_is_lost() {
    let ignores = "pool_mode = session\nignore_startup_parameters = options, lease.fence";
    let world = fenced(POLICIES);
    let bouncer = PgBouncer::before(&world.proxy.address(), ignores);
    for (name, token) in AT_LOGIN {
        let mut wire = bouncer.login_with(name, token).unwrap();
        assert_eq!(value(&mut wire, "SELECT current_setting('lease.fence', true)").unwrap_or_default(), "");
        assert_eq!(code(&mut wire, WRITE), "LF002", "{name}");
    }
    assert_eq!(rows(&world), "0");
}

/// The danger of the combination that docs/run/deploy.md warns of.
#[test]
fn before_a_proxy_a_lost_token_and_on_missing_allow_write_unfenced() {
    let ignores = "pool_mode = session\nignore_startup_parameters = options, lease.fence";
    let world = fenced(&POLICIES.replace("jobs]}", "jobs], on_missing: allow}"));
    let bouncer = PgBouncer::before(&world.proxy.address(), ignores);
    ok(&mut world.holder(48), WRITE);
    for (name, token) in AT_LOGIN {
        ok(&mut bouncer.login_with(name, token).unwrap(), WRITE);
    }
    assert_eq!(rows(&world), "3");
}

/// The reason for session mode: the proxy has one session, and cannot distinguish its clients.
#[test]
fn before_a_proxy_transaction_mode_gives_the_token_to_other_clients() {
    let world = fenced(POLICIES);
    let settings = "pool_mode = transaction\ndefault_pool_size = 1";
    let bouncer = PgBouncer::before(&world.proxy.address(), settings);
    let (mut leader, mut other) = (bouncer.login(), bouncer.login());
    ok(&mut leader, "SET lease.fence = 47");
    ok(&mut other, WRITE);
    assert_eq!(rows(&world), "1");
}

fn behind(settings: &str) -> (Fenced, PgBouncer) {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    let settings = format!("ignore_startup_parameters = options, lease.fence\n{settings}");
    let bouncer = PgBouncer::before(&postgres.address(), &settings);
    let options = ProxyOptions::default().policies(POLICIES).upstream(&bouncer.url());
    (Fenced { proxy: Proxy::start_with(&postgres, &options), postgres }, bouncer)
}

#[test]
fn behind_a_proxy_no_session_is_admitted() {
    for mode in ["session", "transaction", "statement"] {
        let (world, _bouncer) = behind(&format!("pool_mode = {mode}"));
        let mut wires = [world.login(), world.login()];
        for wire in &mut wires {
            ok(wire, "SET lease.fence = 47");
            ok(wire, "INSERT INTO free VALUES (1)");
            let error = wire.rows(WRITE).unwrap_err();
            assert_eq!(error.code(), "LF006", "{mode}: {error:?}");
            assert!(error.hint().contains("pooler"), "{mode}: {error:?}");
        }
        assert_eq!(rows(&world), "0", "{mode}");
        assert_eq!(world.proxy.log().matches("pooler_found").count(), 1, "{}", world.proxy.log());
    }
}

/// Control connections prepare statements, and listen.
#[test]
fn control_connections_through_a_pooler_in_transaction_mode_admit_nothing() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    let bouncer = PgBouncer::before(&postgres.address(), "pool_mode = transaction\ndefault_pool_size = 1");
    let control = format!("postgres://postgres@127.0.0.1:{}/postgres", bouncer.port.number());
    let options = ProxyOptions::default().policies(POLICIES).control(&control);
    let world = Fenced { proxy: Proxy::start_with(&postgres, &options), postgres };
    let mut wire = world.login();
    ok(&mut wire, "SET lease.fence = 47");
    assert_eq!(code(&mut wire, WRITE), "LF006", "{}", world.proxy.log());
}
