//! Credentials, certificates and addresses are replaced by a reload, while writers notice nothing.

use crate::support::certificates::{Authority, text};
use crate::support::fenced::value;
use crate::support::guardian::Folder;
use crate::support::ticks::{self, POLICIES, WRITE, ok, session};
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, wait_until};
use crate::tls::psql;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

/// The control roles, each with its password, in place of trust.
const ROLES: &str = "CREATE ROLE one SUPERUSER LOGIN PASSWORD 'a'; CREATE ROLE other SUPERUSER LOGIN PASSWORD 'b'";

fn server(options: Options) -> Postgres {
    let roles = ["one", "other"].map(|role| format!("host all {role} 127.0.0.1/32 scram-sha-256"));
    let postgres = Postgres::start(roles.iter().fold(options, |options, line| options.hba(line)));
    ticks::init(&postgres, "postgres");
    postgres.sql(ROLES);
    postgres
}

fn settings(postgres: &Postgres, control: &str) -> String {
    let port = postgres.port();
    format!("upstream: postgres://127.0.0.1:{port}\ncontrol: postgres://{control}@127.0.0.1:{port}/\n")
}

fn start(postgres: &Postgres, control: &str) -> Proxy {
    let options = ProxyOptions::default().policies(POLICIES).settings(&settings(postgres, control));
    Proxy::start_with(postgres, &options)
}

fn roles_of_control(postgres: &Postgres) -> String {
    postgres.value(
        "SELECT coalesce(string_agg(DISTINCT usename, ' '), '') FROM pg_stat_activity \
         WHERE application_name LIKE 'fencegate%' AND pid <> pg_backend_pid()",
    )
}

/// Leaders take over one after the other, each with a session of its own, while `change` runs.
fn under_takeovers(proxy: &mut Proxy, change: impl FnOnce(&mut Proxy)) {
    let (address, is_over, token) = (proxy.address(), AtomicBool::new(false), AtomicI64::new(0));
    let take_over = |within: &AtomicBool| {
        while !within.load(Ordering::Relaxed) {
            let mut leader = session(&address, token.fetch_add(1, Ordering::Relaxed) + 1);
            ok(&mut leader, WRITE);
            ok(&mut leader, WRITE);
        }
    };
    /// Ends the takeovers, also after a failure.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| take_over(&is_over));
        let reached = |number| wait_until("leaders take over", DEADLINE, || token.load(Ordering::Relaxed) > number);
        reached(3);
        change(proxy);
        reached(token.load(Ordering::Relaxed) + 3);
    });
}

#[test]
fn another_role_and_password_of_the_control_connection() {
    let postgres = server(Options::default());
    let mut proxy = start(&postgres, "one:a");
    under_takeovers(&mut proxy, |proxy| {
        proxy.reload_with(&settings(&postgres, "other:b"));
        wait_until("the role has changed", DEADLINE, || roles_of_control(&postgres) == "other");
        postgres.sql("ALTER ROLE one NOLOGIN");
    });
    assert!(!proxy.log().contains("control_"), "{}", proxy.log());
}

#[test]
fn a_control_connection_that_cannot_be_used_is_not_put_in_force() {
    let postgres = server(Options::default());
    let mut proxy = start(&postgres, "one:a");
    under_takeovers(&mut proxy, |proxy| {
        proxy.reload_with(&settings(&postgres, "other:wrong"));
        assert!(proxy.log().contains("password authentication failed for user \\\"other\\\""), "{}", proxy.log());
        assert!(!proxy.log().contains("setting_changed"), "{}", proxy.log());
    });
    assert_eq!(roles_of_control(&postgres), "one");
}

#[test]
fn another_address_of_the_server() {
    let postgres = server(Options::default());
    let mut proxy = start(&postgres, "one:a");
    let by_socket = |proxy: &Proxy| {
        value(&mut session(&proxy.address(), 1000), "SELECT inet_server_addr() IS NULL").as_deref() == Some("t")
    };
    under_takeovers(&mut proxy, |proxy| {
        assert!(!by_socket(proxy));
        let (directory, port) = (postgres.socket_dir().display(), postgres.port());
        proxy.reload_with(&format!("upstream: {directory}:{port}\ncontrol: postgres://one:a@127.0.0.1:{port}/\n"));
        assert!(by_socket(proxy));
    });
}

/// The server's certificate comes from a new authority: first the proxy trusts both, then the new one only.
#[test]
fn another_authority_of_the_servers_certificate() {
    let [before, after] = ["before", "after"].map(Authority::new);
    let certificate = before.sign_local("server");
    let postgres = server(Options::default().tls(&certificate));
    let folder = Folder::new("roots");
    let both = folder.join("both.pem");
    let pem = |authority: &Authority| fs::read_to_string(authority.pem()).unwrap();
    fs::write(&both, pem(&before) + &pem(&after)).unwrap();
    let trusting = |file: &str| {
        let tls = format!("upstream_sslmode: verify-full\nupstream_sslrootcert: {file}\n");
        settings(&postgres, "one:a") + &tls
    };
    let options = ProxyOptions::default().policies(POLICIES).settings(&trusting(&text(&before.pem())));
    let mut proxy = Proxy::start_with(&postgres, &options);
    under_takeovers(&mut proxy, |proxy| {
        proxy.reload_with(&trusting(&text(&both)));
        let renewed = after.sign_local("server");
        postgres.replace_certificate(&renewed);
        proxy.reload_with(&trusting(&text(&after.pem())));
        assert!(!proxy.log().contains("reload_failed"), "{}", proxy.log());
    });
}

/// Certificates of clients and the encryption of their connections, each from a file that was not set before.
#[test]
fn encryption_for_clients_is_turned_on() {
    let postgres = server(Options::default());
    let authority = Authority::new("authority");
    let certificate = authority.sign_local("proxy");
    let mut proxy = start(&postgres, "one:a");
    let is_encrypted = |proxy: &Proxy| {
        let parameters = format!("sslmode=verify-full host=localhost sslrootcert={}", text(&authority.pem()));
        psql(&proxy.address(), &parameters, "SELECT 1").is_ok()
    };
    under_takeovers(&mut proxy, |proxy| {
        assert!(!is_encrypted(proxy));
        let tls = format!("tls_cert: {}\ntls_key: {}\n", text(&certificate.pem), text(&certificate.key));
        proxy.reload_with(&(settings(&postgres, "one:a") + &tls));
        assert!(is_encrypted(proxy));
    });
}
