//! Control connections, and commands that open one, have the same TLS modes, also in the URL.

use super::world::{leak, offering};
use crate::support::certificates::{Authority, Validity, text};
use crate::support::fenced::{Fenced, init, ok};
use crate::support::proxy::fencegate;
use crate::support::ticks::POLICIES;
use crate::support::wait::DEADLINE;
use crate::support::{Options, Postgres, ProxyOptions};

/// Whether control connections exist and all of them are encrypted.
const CONTROL: &str = "SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
    WHERE application_name = 'fencegate control'";
const SCHEMA: &str = "CREATE TABLE ticks (n int)";

#[test]
fn as_sessions_or_as_the_url_says() {
    let authority = Authority::new("authority");
    let ca = leak(text(&authority.pem()));
    let verified = ["--upstream-sslmode", "verify-full", "--upstream-sslrootcert", ca];
    for (arguments, parameters, expected) in [
        (&[][..], "", "t"),
        (&verified, "", "t"),
        (&["--upstream-sslmode", "disable"], "", "f"),
        (&["--upstream-sslmode", "disable"], "?sslmode=require", "t"),
        (&["--upstream-sslmode", "disable"], "?application_name=x&sslmode=verify-full&sslrootcert=CA", "t"),
        (&verified, "?sslmode=disable", "f"),
    ] {
        let postgres = Postgres::start(Options::default().tls(&authority.sign_local("server")));
        postgres.sql(SCHEMA);
        init(&postgres, "postgres");
        let control = postgres.control_url() + &parameters.replace("CA", ca);
        let options = ProxyOptions::default().policies(POLICIES).control(&control).arguments(arguments);
        let proxy = crate::support::Proxy::start_with(&postgres, &options);
        let fenced = Fenced { proxy, postgres };
        let mut holder = fenced.holder(1);
        ok(&mut holder, "INSERT INTO ticks VALUES (1)");
        assert_eq!(fenced.postgres.value(CONTROL), expected, "{arguments:?} {parameters}");
    }
}

#[test]
fn a_server_that_cannot_be_trusted_gets_no_control_connection() {
    let authority = Authority::new("authority");
    let postgres = Postgres::start(Options::default().tls(&authority.sign_local("server")));
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    let other = Authority::new("other");
    let other = text(&other.pem());
    let control = format!("{}?sslmode=verify-ca&sslrootcert={other}", postgres.control_url());
    let options = ProxyOptions::default().policies(POLICIES).control(&control);
    let proxy = crate::support::Proxy::start_with(&postgres, &options);
    let fenced = Fenced { proxy, postgres };
    let error = fenced.holder(1).rows("INSERT INTO ticks VALUES (1)").unwrap_err();
    assert_eq!(error.code(), "LF006");
    assert!(error.message().ends_with("not signed by a known authority"), "{error:?}");
    // The log includes the remedy.
    fenced.proxy.wait_for_log("in the connection's URL: sslrootcert=FILE", DEADLINE);
}

/// The names would reveal where the server is.
#[test]
fn clients_do_not_learn_the_names_in_a_certificate() {
    let authority = Authority::new("authority");
    let postgres =
        Postgres::start(Options::default().tls(&authority.sign("server", "DNS:hidden.example", Validity::Now)));
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    let ca = text(&authority.pem());
    let control = format!("{}?sslmode=verify-full&sslrootcert={ca}", postgres.control_url());
    let options = ProxyOptions::default().policies(POLICIES).control(&control);
    let proxy = crate::support::Proxy::start_with(&postgres, &options);
    let fenced = Fenced { proxy, postgres };
    let error = fenced.holder(1).rows("INSERT INTO ticks VALUES (1)").unwrap_err();
    assert!(error.code() == "LF006" && error.message().ends_with("certificate is for another name"), "{error:?}");
    fenced.proxy.wait_for_log("hidden.example", DEADLINE);
}

/// The exit code and the output of a command.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = fencegate().args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn by_commands() {
    let authority = Authority::new("authority");
    let options = Options::default().tls(&authority.sign_local("server"));
    // Only the superuser can connect without TLS.
    let postgres = Postgres::start(options.hba("hostnossl all all 127.0.0.1/32 reject"));
    postgres.sql(&format!("{SCHEMA}; CREATE ROLE secure LOGIN SUPERUSER PASSWORD 'right'"));
    let ca = text(&authority.pem());
    let stranger = Authority::new("other");
    let other = text(&stranger.pem());
    let folder = crate::support::guardian::Folder::new("policies");
    std::fs::write(folder.join("policies.yaml"), POLICIES).unwrap();
    let policies = leak(text(folder.path()));
    let url = |parameters: &str| format!("postgres://secure@localhost:{}/postgres?{parameters}", postgres.port());
    for (mode, expected) in [("disable", 1), ("allow", 0), ("prefer", 0), ("require", 0)] {
        let (code, said) = run(&["init", "--control", &url(&format!("sslmode={mode}"))]);
        assert_eq!(code, Some(expected), "{mode}: {said}");
    }
    let verified = url(&format!("sslmode=verify-full&sslrootcert={ca}"));
    for command in [
        &["init", "--control", &verified][..],
        &["guard", "install", "--control", &verified, "--policies", policies],
        &["guard", "status", "--control", &verified, "--policies", policies],
        &["policy", "explain", policies, "--database", &verified],
        &["guard", "remove", "--control", &verified],
    ] {
        let (code, said) = run(command);
        assert_eq!(code, Some(0), "{command:?}: {said}");
    }
    let unverified = url(&format!("sslmode=verify-full&sslrootcert={other}"));
    let (code, said) = run(&["init", "--control", &unverified]);
    assert!(code == Some(1) && said.contains("not signed by a known authority"), "{said}");
    assert!(said.contains("in the connection's URL: sslrootcert=FILE") && !said.contains("upstream_"), "{said}");
    let (code, said) = run(&["init", "--control", &url("sslmode=require&sslrootcert=/nowhere")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("sslrootcert: /nowhere: cannot read the file"), "{said}");
}

#[test]
fn of_two_refusals_the_encrypted_one_is_reported() {
    let authority = Authority::new("authority");
    let options = Options::default().tls(&authority.sign_local("server")).client_authority(&authority);
    let options =
        options.hba("hostssl all certified 127.0.0.1/32 cert").hba("hostnossl all certified 127.0.0.1/32 reject");
    let postgres = Postgres::start(options);
    postgres.sql("CREATE ROLE certified LOGIN SUPERUSER");
    for mode in ["prefer", "allow"] {
        let url = format!("postgres://certified@localhost:{}/postgres?sslmode={mode}", postgres.port());
        let (code, said) = run(&["init", "--control", &url]);
        assert!(code == Some(1) && said.contains("connection requires a valid client certificate"), "{mode}: {said}");
    }
}

#[test]
fn scram_with_channel_binding() {
    let authority = Authority::new("authority");
    let options = Options::default().tls(&authority.sign_local("server"));
    let postgres = Postgres::start(options.hba("hostssl all gate 127.0.0.1/32 scram-sha-256"));
    postgres.sql(&format!("{SCHEMA}; CREATE ROLE gate LOGIN SUPERUSER PASSWORD 'right'"));
    let binding = "sslmode=require&channel_binding=require";
    let url = format!("postgres://gate:right@localhost:{}/postgres?{binding}", postgres.port());
    let (code, said) = run(&["init", "--control", &url]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(&["init", "--control", &url.replace("right", "wrong")]);
    assert!(code == Some(1) && said.contains("password authentication failed"), "{said}");
    // The control connection uses its own channel binding, beside clients with another certificate.
    let options =
        ProxyOptions::default().policies(POLICIES).control(&url).arguments(&offering(&authority.sign_local("proxy")));
    let proxy = crate::support::Proxy::start_with(&postgres, &options);
    let fenced = Fenced { proxy, postgres };
    let mut holder = fenced.holder(1);
    ok(&mut holder, "INSERT INTO ticks VALUES (1)");
    assert_eq!(fenced.postgres.value(CONTROL), "t");
}
