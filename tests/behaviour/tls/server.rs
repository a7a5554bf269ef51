//! TLS between the proxy and the server: every sslmode, and the verification of the certificate.

use super::world::{IS_ENCRYPTED, leak, psql, refused};
use crate::support::certificates::{Authority, Certificate, Validity, text};
use crate::support::guardian::Folder;
use crate::support::proxy::{NO_POLICIES, fencegate};
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A proxy that connects to the server by this host name.
fn proxy_to(postgres: &Postgres, host: &str, arguments: &[&str]) -> Proxy {
    let options = ProxyOptions::default().upstream(&format!("postgres://{host}:{}", postgres.port()));
    Proxy::start_with(postgres, &options.arguments(arguments))
}

/// Whether the connection to the server is encrypted, according to the server.
fn is_encrypted(proxy: &Proxy, user: &str) -> Result<String, String> {
    psql(&proxy.address(), &format!("user={user}"), IS_ENCRYPTED)
}

#[test]
fn a_server_without_tls() {
    let postgres = Postgres::start(Options::default());
    for mode in ["disable", "allow", "prefer"] {
        let proxy = proxy_to(&postgres, "localhost", &["--upstream-sslmode", mode]);
        assert_eq!(is_encrypted(&proxy, "postgres").as_deref(), Ok("f"), "{mode}");
    }
    let authority = Authority::new("authority");
    let ca = leak(text(&authority.pem()));
    for mode in ["require", "verify-ca", "verify-full"] {
        let proxy = proxy_to(&postgres, "localhost", &["--upstream-sslmode", mode, "--upstream-sslrootcert", ca]);
        let error = refused(is_encrypted(&proxy, "postgres"), "the server does not support TLS");
        assert!(error.contains("upstream_sslmode"), "{error}");
        proxy.wait_for_log("upstream_unreachable", DEADLINE);
    }
    // Unix sockets are not encrypted in any mode.
    let options = ProxyOptions::default().upstream_by_socket().arguments(&["--upstream-sslmode", "require"]);
    let proxy = Proxy::start_with(&postgres, &options);
    assert_eq!(is_encrypted(&proxy, "postgres").as_deref(), Ok("f"));
}

#[test]
fn check_warns_of_clear_text_clients_on_a_network() {
    let authority = Authority::new("authority");
    let postgres = Postgres::start(Options::default().tls(&authority.sign_local("server")));
    let own = authority.sign_local("proxy");
    let (pem, key) = (text(&own.pem), text(&own.key));
    let folder = Folder::new("clear-text");
    fs::write(folder.join("policies.yaml"), NO_POLICIES).unwrap();
    let (upstream, policies) =
        (format!("postgres://localhost:{}", postgres.port()), folder.path().display().to_string());
    let control = format!("postgres://postgres@localhost:{}/postgres", postgres.port());
    let settings = ["--upstream", &upstream, "--control", &control, "--policies", &policies];
    let certificate = ["--tls-cert", &pem, "--tls-key", &key];
    let warns = |arguments: &[&str]| {
        let output = fencegate().args(["proxy", "--check"]).args(settings).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said.contains("warning clients: 0.0.0.0:6432 accepts connections without TLS")
    };
    let on_network = ["--listen", "0.0.0.0:6432"];
    assert!(warns(&on_network));
    assert!(warns(&[&on_network[..], &certificate].concat()), "clients may encrypt, and need not");
    assert!(!warns(&[&on_network[..], &certificate, &["--tls", "require"]].concat()));
    assert!(!warns(&[&on_network[..], &["--upstream-sslmode", "disable"]].concat()), "pg_hba.conf sees clear text");
    assert!(!warns(&["--listen", "localhost:6432", "--listen", "[::1]:6433", "--listen", "/tmp:6434"]));
}

#[test]
fn a_server_with_tls() {
    let authority = Authority::new("authority");
    let postgres = Postgres::start(Options::default().tls(&authority.sign_local("server")));
    let ca = leak(text(&authority.pem()));
    let with_root = ["--upstream-sslrootcert", ca];
    for (mode, expected) in [("disable", "f"), ("allow", "f"), ("prefer", "t"), ("require", "t")] {
        for root in [&[][..], &with_root] {
            let proxy = proxy_to(&postgres, "localhost", &[&["--upstream-sslmode", mode], root].concat());
            assert_eq!(is_encrypted(&proxy, "postgres").as_deref(), Ok(expected), "{mode} {root:?}");
        }
    }
    for (mode, host) in [("verify-ca", "localhost"), ("verify-full", "localhost"), ("verify-full", "127.0.0.1")] {
        let proxy = proxy_to(&postgres, host, &[&["--upstream-sslmode", mode], &with_root[..]].concat());
        assert_eq!(is_encrypted(&proxy, "postgres").as_deref(), Ok("t"), "{mode} {host}");
    }
    // The default mode.
    assert_eq!(is_encrypted(&proxy_to(&postgres, "localhost", &[]), "postgres").as_deref(), Ok("t"));
}

#[test]
fn certificates_that_prove_nothing() {
    let authority = Authority::new("authority");
    let local = "DNS:localhost,IP:127.0.0.1";
    let ca = leak(text(&authority.pem()));
    let start = |certificate: &Certificate| Postgres::start(Options::default().tls(certificate));
    let check = |postgres: &Postgres, mode: &str, expected: Result<&str, (&str, &str)>| {
        let proxy = proxy_to(postgres, "localhost", &["--upstream-sslmode", mode, "--upstream-sslrootcert", ca]);
        match (is_encrypted(&proxy, "postgres"), expected) {
            (Ok(shown), Ok(expected)) => assert_eq!(shown, expected, "{mode}"),
            (result, Err((why, hint))) => assert!(refused(result, why).contains(hint), "{mode}"),
            (Err(error), _) => panic!("{mode}: {error}"),
        }
    };
    let unknown = start(&Authority::new("others").sign_local("other"));
    const UNKNOWN: &str = "not signed by a known authority";
    let no_authority = Err((UNKNOWN, "upstream_sslrootcert"));
    // As in libpq, configured authorities count in all modes. With prefer, the proxy then continues without TLS.
    check(&unknown, "prefer", Ok("f"));
    check(&unknown, "require", no_authority);
    check(&unknown, "verify-ca", no_authority);
    check(&unknown, "verify-full", no_authority);
    let proxy = proxy_to(&unknown, "localhost", &["--upstream-sslmode", "require"]);
    assert_eq!(is_encrypted(&proxy, "postgres").as_deref(), Ok("t"));
    let proxy =
        proxy_to(&unknown, "localhost", &["--upstream-sslmode", "verify-full", "--upstream-sslrootcert", "system"]);
    refused(is_encrypted(&proxy, "postgres"), UNKNOWN);

    let elsewhere = start(&authority.sign("elsewhere", "DNS:elsewhere", Validity::Now));
    check(&elsewhere, "require", Ok("t"));
    check(&elsewhere, "verify-ca", Ok("t"));
    check(&elsewhere, "verify-full", Err(("for another name", "verify-ca")));

    let expired = start(&authority.sign("expired", local, Validity::Expired));
    check(&expired, "verify-ca", Err(("certificate has expired", "Renew it")));
    check(&expired, "prefer", Ok("f"));
    let not_yet = start(&authority.sign("not-yet", local, Validity::NotYet));
    check(&not_yet, "verify-full", Err(("not valid yet", "clocks")));
}

#[test]
fn requirements_of_pg_hba_conf() {
    let certificate = Authority::new("authority").sign_local("server");
    let options = Options::default().tls(&certificate);
    let options = options.hba("hostnossl all secure 127.0.0.1/32 reject").hba("hostssl all open 127.0.0.1/32 reject");
    let postgres = Postgres::start(options);
    postgres.sql("CREATE ROLE secure LOGIN; CREATE ROLE open LOGIN");
    for (mode, secure, open) in [
        ("disable", None, Some("f")),
        ("allow", Some("t"), Some("f")),
        ("prefer", Some("t"), Some("f")),
        ("require", Some("t"), None),
    ] {
        let proxy = proxy_to(&postgres, "localhost", &["--upstream-sslmode", mode]);
        for (user, expected) in [("secure", secure), ("open", open)] {
            match expected {
                Some(expected) => assert_eq!(is_encrypted(&proxy, user).as_deref(), Ok(expected), "{mode} {user}"),
                None => drop(refused(is_encrypted(&proxy, user), "pg_hba.conf rejects connection")),
            }
        }
    }
}

#[test]
fn a_server_that_asks_for_a_certificate() {
    let authority = Authority::new("authority");
    let options = Options::default().tls(&authority.sign_local("server")).client_authority(&authority);
    let postgres = Postgres::start(options.hba("hostssl all certified 127.0.0.1/32 cert"));
    postgres.sql("CREATE ROLE certified LOGIN");
    let shown = |certificate: &Certificate| {
        let [certificate, key] = [&certificate.pem, &certificate.key].map(|path| leak(text(path)));
        ["--upstream-sslmode", "require", "--upstream-sslcert", certificate, "--upstream-sslkey", key]
    };
    let proxy = proxy_to(&postgres, "localhost", &shown(&authority.sign_local("certified")));
    assert_eq!(is_encrypted(&proxy, "certified").as_deref(), Ok("t"));
    let proxy = proxy_to(&postgres, "localhost", &["--upstream-sslmode", "require"]);
    refused(is_encrypted(&proxy, "certified"), "connection requires a valid client certificate");
    for stranger in [
        Authority::new("strangers").sign_local("certified"),
        authority.sign("expired", "DNS:certified", Validity::Expired),
    ] {
        let proxy = proxy_to(&postgres, "localhost", &shown(&stranger));
        let error = refused(is_encrypted(&proxy, "certified"), "the server refused TLS with the proxy");
        assert!(error.contains("upstream_sslcert"), "{error}");
    }
}

/// After two refusals, only that of the encrypted attempt gives the reason. The other reports only missing encryption.
#[test]
fn of_two_refusals_the_encrypted_one_is_reported() {
    let authority = Authority::new("authority");
    let options = Options::default().tls(&authority.sign_local("server")).client_authority(&authority);
    let options =
        options.hba("hostssl all certified 127.0.0.1/32 cert").hba("hostnossl all certified 127.0.0.1/32 reject");
    let postgres = Postgres::start(options);
    postgres.sql("CREATE ROLE certified LOGIN");
    for mode in ["prefer", "allow"] {
        let proxy = proxy_to(&postgres, "localhost", &["--upstream-sslmode", mode]);
        refused(is_encrypted(&proxy, "certified"), "connection requires a valid client certificate");
    }
    // Here the handshake fails.
    let others = Authority::new("others");
    let other = leak(text(&others.pem()));
    for mode in ["prefer", "allow"] {
        let proxy = proxy_to(&postgres, "localhost", &["--upstream-sslmode", mode, "--upstream-sslrootcert", other]);
        refused(is_encrypted(&proxy, "certified"), "not signed by a known authority");
    }
    // If the server does not support TLS, there is only one refusal.
    let plain = Postgres::start(Options::default().hba("hostnossl all certified 127.0.0.1/32 reject"));
    plain.sql("CREATE ROLE certified LOGIN");
    for mode in ["prefer", "allow"] {
        let proxy = proxy_to(&plain, "localhost", &["--upstream-sslmode", mode]);
        refused(is_encrypted(&proxy, "certified"), "pg_hba.conf rejects connection");
    }
}

/// A server that answers a TLS request with these bytes and then sends nothing.
fn answering(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            client.read_exact(&mut [0; 8]).unwrap();
            client.write_all(bytes).unwrap();
            held.push(client);
        }
    });
    url
}

#[test]
fn invalid_responses_to_a_tls_request() {
    let postgres = Postgres::start(Options::default());
    for (bytes, why) in [
        (&b"SEnot encrypted"[..], "an invalid response to the TLS request"),
        (b"ESFATAL\0Mbelieve me\0\0", "an invalid response to the TLS request"),
        (b"S", "timed out"),
    ] {
        let options = ProxyOptions::default().upstream(&answering(bytes)).arguments(&["--upstream-sslmode", "require"]);
        let proxy = Proxy::start_with(&postgres, &options);
        let error = refused(is_encrypted(&proxy, "postgres"), why);
        assert!(!error.contains("believe me"), "{error}");
    }
}
