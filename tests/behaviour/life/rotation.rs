//! A reload replaces credentials, certificates and addresses without affecting writers.

use crate::authority::world as authority;
use crate::support::certificates::{Authority, Certificate, text};
use crate::support::fenced::value;
use crate::support::guardian::Folder;
use crate::support::ticks::{self, POLICIES, WRITE, ok, session};
use crate::support::{DEADLINE, Etcd, Options, Postgres, Proxy, ProxyOptions, wait_until};
use crate::tls::psql;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

/// The control roles, each with a password instead of trust authentication.
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

/// Leaders take over one after the other, each in its own session, while `change` runs.
fn under_takeovers(proxy: &mut Proxy, change: impl FnOnce(&mut Proxy)) {
    let (address, is_over, token) = (proxy.address(), AtomicBool::new(false), AtomicI64::new(0));
    let take_over = |within: &AtomicBool| {
        while !within.load(Ordering::Relaxed) {
            let mut leader = session(&address, token.fetch_add(1, Ordering::Relaxed) + 1);
            ok(&mut leader, WRITE);
            ok(&mut leader, WRITE);
        }
    };
    /// Ends the takeovers, even after a failure.
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

/// A new authority signs the server's certificate. First the proxy trusts both authorities, then only the new one.
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

/// Replaces the certificates of the control connection and the server, and the authority of both, while both sides
/// trust both authorities.
#[test]
fn another_certificate_of_the_control_connection() {
    let [before, after] = ["before", "after"].map(Authority::new);
    let options = Options::default().tls(&before.sign_local("server")).client_authority(&before);
    let postgres = server(options.hba("hostssl all gate 127.0.0.1/32 cert"));
    postgres.sql("CREATE ROLE gate SUPERUSER LOGIN");
    let folder = Folder::new("roots");
    let both = folder.join("both.pem");
    fs::write(&both, [&before, &after].map(|it| fs::read_to_string(it.pem()).unwrap()).concat()).unwrap();
    let settings = |roots: &Path, certificate: &Certificate| {
        let (port, tls) = (postgres.port(), "sslmode=verify-full");
        let files =
            format!("sslrootcert={}&sslcert={}&sslkey={}", text(roots), text(&certificate.pem), text(&certificate.key));
        format!(
            "upstream: postgres://127.0.0.1:{port}\ncontrol: postgres://gate@127.0.0.1:{port}/postgres?{tls}&{files}\n"
        )
    };
    let [first, second] = [&before, &after].map(|authority| authority.sign_local("gate"));
    let options = ProxyOptions::default().policies(POLICIES).settings(&settings(&before.pem(), &first));
    let mut proxy = Proxy::start_with(&postgres, &options);
    let issuers = "SELECT string_agg(DISTINCT issuer_dn, ' ') FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
         WHERE application_name LIKE 'fencegate%'";
    under_takeovers(&mut proxy, |proxy| {
        assert_eq!(postgres.value(issuers), "/CN=before");
        postgres.trust_clients_of(&[&before, &after]);
        proxy.reload_with(&settings(&both, &second));
        wait_until("the certificate has changed", DEADLINE, || postgres.value(issuers) == "/CN=after");
        postgres.replace_certificate(&after.sign_local("server"));
        postgres.trust_clients_of(&[&after]);
        proxy.reload_with(&settings(&after.pem(), &second));
    });
    let log = proxy.log();
    assert!(!log.contains("reload_failed") && !log.contains("control_"), "{log}");
}

/// Replaces the user of etcd, its certificate, the member's certificate, and the authority of both, while both sides
/// trust both authorities.
#[test]
fn another_user_and_certificate_for_etcd() {
    let mut world = authority::World { postgres: ticks::server(), etcd: Etcd::start_with_tls() };
    let folder = Folder::new("roots");
    let old = folder.join("old.pem");
    fs::copy(world.etcd.certificates().file("ca.pem"), &old).unwrap();
    world.etcd.enable_users("/cron/");
    world.etcd.add_user("next", Some("p"), "/cron/");
    let next = world.etcd.with_next_certificates();
    let own = |name: &str| world.etcd.certificates().file(name);
    let settings = |roots: &Path, (certificate, key): (&Path, &Path), user: &str| {
        let (upstream, control, etcd) = (world.postgres.url(), world.postgres.control_url(), world.etcd.url());
        let [roots, certificate, key] = [roots, certificate, key].map(text);
        format!(
            "upstream: {upstream}\ncontrol: {control}\netcd: {etcd}\netcd_ca: {roots}\netcd_cert: {certificate}\n\
             etcd_key: {key}\n{user}"
        )
    };
    let [gate, other] = ["etcd_user: gate\netcd_password: pass word\n", "etcd_user: next\netcd_password: p\n"];
    let (certificate, key) = (own("client.pem"), own("client.key"));
    let (next_certificate, next_key) = (next.file("client.pem"), next.file("client.key"));
    let start = settings(&old, (&certificate, &key), gate);
    let options = ProxyOptions::default().policies(authority::POLICIES).settings(&start);
    let mut proxy = Proxy::start_with(&world.postgres, &options);
    let mut leaders = vec![world.stand("a")];
    let mut first = session(&proxy.address(), leaders[0]);
    ok(&mut first, WRITE);

    proxy.reload_with(&settings(&own("ca.pem"), (&next_certificate, &next_key), other));
    world.etcd.delete_user("gate");
    for file in ["server.pem", "server.key"] {
        fs::copy(next.file(file), own(file)).unwrap();
    }
    ok(&mut first, WRITE);
    leaders.push(world.stand("b"));
    world.depose("a");
    let mut second = session(&proxy.address(), leaders[1]);
    ok(&mut second, WRITE);

    proxy.reload_with(&settings(&next.file("ca.pem"), (&next_certificate, &next_key), other));
    leaders.push(world.stand("c"));
    world.depose("b");
    ok(&mut session(&proxy.address(), leaders[2]), WRITE);
    assert!(!proxy.log().contains("reload_failed"), "{}", proxy.log());
}

/// Enables encryption and certificates for clients, each from a file that was not configured before.
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
