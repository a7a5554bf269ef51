//! TLS between clients and the proxy: off, allowed or required, and the version.

use super::world::{World, leak, offering, psql, psycopg, refused, s_client};
use crate::support::certificates::Validity;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, message, wait_until};

#[test]
fn allowed() {
    let world = World::start(&[]);
    let root = world.root();
    assert_eq!(world.psql("sslmode=disable").unwrap(), "in");
    for parameters in ["prefer", "require", "verify-ca", "verify-full"] {
        let parameters = format!("sslmode={parameters} {root}");
        assert_eq!(world.psql(&parameters).unwrap(), "in");
        let shown = psql(&world.proxy.address(), &parameters, "\\conninfo").unwrap();
        assert!(shown.contains("SSL connection (protocol: TLSv1.3"), "{shown}");
    }
    let shown =
        psql(&world.proxy.address(), &format!("host=localhost sslmode=verify-full {root}"), "\\conninfo").unwrap();
    assert!(shown.contains("TLSv1.3"), "{shown}");
    // Like the server, the proxy does not encrypt Unix sockets.
    assert_eq!(psql(&world.proxy.socket(), "sslmode=prefer", "SELECT 1").unwrap(), "1");
    // The connection to the server is not encrypted, because the server does not support TLS.
    assert_eq!(psql(&world.proxy.address(), "", super::world::IS_ENCRYPTED).unwrap(), "f");
}

#[test]
fn a_record_longer_than_a_read_is_read_to_its_end() {
    let world = World::start(&[]);
    let text = format!("SELECT 1 /*{}*/", "x".repeat(3000));
    assert_eq!(psql(&world.proxy.address(), "sslmode=require", &text).unwrap(), "1");
}

#[test]
fn required() {
    let world = World::start(&["--tls", "require"]);
    assert_eq!(world.psql("sslmode=require").unwrap(), "in");
    let error = refused(world.psql("sslmode=disable"), "the connection is not encrypted, and the proxy requires TLS");
    assert!(error.contains("sslmode=require"), "{error}");
    let mut plain = Wire::connect(&world.proxy.address()).unwrap();
    let refusal = error_in(&plain.start(&[("user", "postgres"), ("database", "postgres")], "")).unwrap();
    assert_eq!((refusal.severity(), refusal.code()), ("FATAL", "28000"));
    assert_eq!(psql(&world.proxy.socket(), "", "SELECT 1").unwrap(), "1");
    // The rule includes the console.
    assert!(psql(&world.proxy.address(), "dbname=fencegate sslmode=require", "SHOW FENCES").is_ok());
    refused(psql(&world.proxy.address(), "dbname=fencegate sslmode=disable", "SHOW FENCES"), "requires TLS");
}

#[test]
fn off() {
    let authority = crate::support::certificates::Authority::new("authority");
    let certificate = authority.sign_local("proxy");
    let postgres = Postgres::start(Options::default());
    for arguments in [vec![], [&["--tls", "off"][..], &offering(&certificate)].concat()] {
        let proxy = Proxy::start(&postgres, crate::support::proxy::NO_POLICIES, &arguments);
        refused(psql(&proxy.address(), "sslmode=require", "SELECT 1"), "server does not support SSL");
        assert_eq!(psql(&proxy.address(), "sslmode=prefer", "SELECT 1").unwrap(), "1");
    }
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn off_for_clients_that_begin_with_tls() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, crate::support::proxy::NO_POLICIES, &["--tls", "off"]);
    let direct = "sslnegotiation=direct sslmode=require";
    refused(psycopg(&proxy.address(), direct, super::direct::SELECT), "EOF detected");
}

#[test]
fn old_versions() {
    let world = World::start(&[]);
    for (version, in_words) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (is_open, said) = s_client(&world.proxy.address(), &format!("-starttls postgres {version}"));
        assert!(is_open && said.contains(in_words), "{said}");
    }
    assert_eq!(world.psql("sslmode=require ssl_max_protocol_version=TLSv1.2").unwrap(), "in");
    let world = World::start(&["--tls-min-version", "TLSv1.3"]);
    let (is_open, said) = s_client(&world.proxy.address(), "-starttls postgres -tls1_2");
    assert!(!is_open && said.contains("protocol version"), "{said}");
    refused(world.psql("sslmode=require ssl_max_protocol_version=TLSv1.2"), "protocol version");
    assert_eq!(world.psql("sslmode=require").unwrap(), "in");
}

#[test]
fn a_certificate_that_clients_reject() {
    let world = World::start(&[]);
    let names = "DNS:localhost,IP:127.0.0.1";
    let other = crate::support::certificates::Authority::new("other");
    for (certificate, mode, why) in [
        (world.authority.sign("expired", names, Validity::Expired), "verify-ca", "certificate verify failed"),
        (world.authority.sign("elsewhere", "DNS:elsewhere", Validity::Now), "verify-full", "does not match host name"),
        (other.sign_local("other"), "verify-ca", "certificate verify failed"),
    ] {
        let proxy = Proxy::start(&world.postgres, crate::support::proxy::NO_POLICIES, &offering(&certificate));
        refused(psql(&proxy.address(), &format!("sslmode={mode} {}", world.root()), "SELECT 1"), why);
        assert_eq!(psql(&proxy.address(), "sslmode=require", "SELECT 1").unwrap(), "1");
        if mode == "verify-ca" {
            proxy.wait_for_log("session_refused", DEADLINE);
        }
    }
}

#[test]
fn data_after_a_tls_request_is_ignored() {
    let world = World::start(&[]);
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let startup = message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), ("database", "postgres")]);
    wire.send(&[message::ssl_request(), startup].concat());
    let frames = wire.read_to_end();
    assert_eq!(error_in(&frames).unwrap().code(), "08P01", "{frames:?}");
}

#[test]
fn a_slow_handshake_blocks_no_client_and_is_limited() {
    let world = World::start(&["--startup-timeout", "10"]);
    let ask = |_| {
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        wire.send(&message::ssl_request());
        wire
    };
    let mut slow: Vec<_> = (0..20).map(ask).collect();
    slow.iter_mut().for_each(|wire| assert_eq!(wire.byte(), Some(b'S')));
    let open = world.proxy.open_files();
    // Half of a TLS record.
    slow[0].send(&[0x16, 3, 1, 2, 0, 1]);
    assert_eq!(world.psql("sslmode=require").unwrap(), "in");
    assert!(
        !world.proxy.log().contains("no startup packet within the time limit"),
        "the client was served while the others were still open"
    );
    let end = |wire: &mut Wire| wire.byte().is_none();
    assert!(slow.iter_mut().all(end), "the proxy closes them");
    // A client that disconnects during the handshake leaves nothing open.
    for _ in 0..20 {
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        wire.send(&message::ssl_request());
        assert_eq!(wire.byte(), Some(b'S'));
    }
    wait_until("their sockets are closed", DEADLINE, || world.proxy.open_files() + slow.len() <= open);
    assert_eq!(world.psql(leak("sslmode=require".into())).unwrap(), "in");
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn cancel_requests_come_with_and_without_tls() {
    let world = World::start(&["--tls", "require"]);
    for how in ["cancel_safe", "cancel"] {
        let program = CANCEL.replace("HOW", how);
        let said = psycopg(&world.proxy.address(), "sslmode=require", &program);
        assert_eq!(said.as_deref(), Ok("57014"), "{how}");
    }
}

/// libpq's newer function encrypts a cancel request if its connection was encrypted. Its older function does not.
const CANCEL: &str = "
import sys, psycopg, threading
watch = psycopg.connect(sys.argv[1], autocommit=True)
c = psycopg.connect(sys.argv[1], autocommit=True)
pid = c.execute('select pg_backend_pid()').fetchone()[0]
def run():
    try: c.execute('select pg_sleep(100)')
    except psycopg.Error as e: print(e.sqlstate)
t = threading.Thread(target=run); t.start()
while not watch.execute(\"select 1 from pg_stat_activity where pid = %s and query like '%%sleep%%' and state = 'active'\", (pid,)).fetchone(): pass
c.HOW()
t.join()
";
