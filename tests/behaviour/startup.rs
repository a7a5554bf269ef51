//! The start of a connection: authentication, startup parameters, refusals, cancel requests and malformed packets. The
//! proxy forwards the server's messages byte for byte.

use crate::support::wire::{error_in, exact};
use crate::support::{
    Address, DEADLINE, Frame, Options, Postgres, Proxy, ProxyOptions, Target, Via, Wire, message, wait_until,
};

crate::routes!(
    every_authentication_method,
    wrong_passwords,
    refusals,
    no_connection_left,
    encryption_is_declined,
    newer_protocols_are_negotiated,
    startup_parameters_arrive,
    bad_startup_parameters,
    malformed_startup_packets,
    cut_short_startup_packets,
    cancel_over_tcp,
    cancel_over_unix_socket,
    cancel_with_a_wrong_key,
    upstream_by_unix_socket,
);

crate::routes!(proxy only: the_console_has_its_name, the_proxys_identity_authenticates_no_client, authenticated_clients_are_accepted_from_everywhere);

const METHODS: [&str; 4] = ["trust", "password", "md5", "scram-sha-256"];

fn every_authentication_method(via: Via) {
    let target = target_with_roles(via);
    for method in METHODS {
        let user = role(method);
        let frames = same_as_direct(&target, |address| start(address, &[("user", &user), DATABASE], "right"));
        assert_eq!(frames.last().unwrap().tag, b'Z', "{method}: {frames:?}");
    }
}

fn wrong_passwords(via: Via) {
    let target = target_with_roles(via);
    for method in &METHODS[1..] {
        let user = role(method);
        let frames = same_as_direct(&target, |address| start(address, &[("user", &user), DATABASE], "wrong"));
        assert_eq!(error_in(&frames).unwrap().code(), "28P01", "{method}");
    }
}

fn refusals(via: Via) {
    let target = target_with_roles(via);
    let cases = [
        ([("user", "refused"), DATABASE], "28000"),
        ([("user", "nobody"), DATABASE], "28000"),
        ([("user", "postgres"), ("database", "nowhere")], "3D000"),
        ([("user", "limited"), DATABASE], "53300"),
        ([("user", "unwelcome"), DATABASE], "28000"),
    ];
    for (parameters, code) in cases {
        let frames = same_as_direct(&target, |address| start(address, &parameters, ""));
        let error = error_in(&frames).unwrap_or_else(|| panic!("{parameters:?}: {frames:?}"));
        assert_eq!((error.severity(), error.code()), ("FATAL", code), "{parameters:?}");
    }
}

fn no_connection_left(via: Via) {
    let target = via.start(Options::default().setting("max_connections", "12"));
    let refused = |address: &Address| {
        // Holds all sessions until the server has no room for another.
        let mut held = Vec::new();
        loop {
            let mut wire = Wire::connect(address).unwrap();
            let frames = wire.start(&[("user", "postgres"), DATABASE], "");
            if error_in(&frames).is_some() {
                return frames;
            }
            held.push(wire);
            assert!(held.len() <= 12, "more sessions than the server allows");
        }
    };
    let [round, expected] = [target.address(), target.postgres.address()].map(|address| exact(&refused(&address)));
    assert_eq!(error_in(&round).unwrap().code(), "53300");
    assert_eq!(round, expected);
}

fn encryption_is_declined(via: Via) {
    let target = via.start(Options::default());
    for requests in [
        vec![message::ssl_request()],
        vec![message::gss_enc_request()],
        vec![message::gss_enc_request(), message::ssl_request()],
    ] {
        let conversation = |address: &Address| {
            let mut wire = Wire::connect(address).unwrap();
            for request in &requests {
                wire.send(request);
                assert_eq!(wire.byte(), Some(b'N'));
            }
            wire.start(&[("user", "postgres"), DATABASE], "")
        };
        let frames = conversation(&target.socket());
        // The test's own server may encrypt by GSSAPI over TCP. Over its socket it declines, as the proxy does.
        assert_eq!(exact(&frames), exact(&conversation(&target.postgres.socket())));
        if via == Via::Proxy {
            assert_eq!(error_in(&conversation(&target.address())), None);
        }
    }
}

fn newer_protocols_are_negotiated(via: Via) {
    let target = via.start(Options::default());
    let plain = [("user", "postgres"), DATABASE];
    let unknown = [("user", "postgres"), ("_pq_.unheard_of", "1"), DATABASE];
    let cases =
        [(message::PROTOCOL_3_2, &plain[..]), (message::PROTOCOL_3_0, &unknown), (message::PROTOCOL_3_2, &unknown)];
    for (protocol, parameters) in cases {
        let frames = same_as_direct(&target, |address| {
            let mut wire = Wire::connect(address).unwrap();
            wire.send(&message::startup(protocol, parameters));
            let mut frames = wire.authenticate("postgres", "");
            frames.extend(wire.query("SELECT 1"));
            frames
        });
        // Some later server versions support 3.2. No version supports this option.
        let negotiated = frames.iter().any(|frame| frame.tag == b'v');
        assert!(negotiated || parameters.len() == plain.len(), "{frames:?}");
    }
}

fn startup_parameters_arrive(via: Via) {
    let target = via.start(Options::default());
    let parameters = [
        ("user", "postgres"),
        DATABASE,
        ("application_name", "a name"),
        ("options", r#"-c statement_timeout=12345 --geqo=off -c search_path="a\ b""#),
        ("DateStyle", "German"),
        ("client_encoding", "LATIN1"),
        ("TimeZone", "Asia/Tokyo"),
        ("my.own", "47"),
    ];
    let expected = [
        ("application_name", "a name"),
        ("statement_timeout", "12345ms"),
        ("geqo", "off"),
        ("search_path", "\"a b\""),
        ("DateStyle", "German, DMY"),
        ("client_encoding", "LATIN1"),
        ("TimeZone", "Asia/Tokyo"),
        ("my.own", "47"),
    ];
    let shown = expected.map(|(name, _)| format!("SHOW {name}")).join(";");
    let frames = same_as_direct(&target, |address| {
        let mut wire = Wire::connect(address).unwrap();
        let mut frames = wire.start(&parameters, "");
        frames.extend(wire.query(&shown));
        frames
    });
    assert_eq!(error_in(&frames), None);
    let values: Vec<_> =
        crate::support::wire::rows_in(&frames).into_iter().map(|row| row[0].clone().unwrap()).collect();
    assert_eq!(values, expected.map(|(_, value)| value));
}

fn bad_startup_parameters(via: Via) {
    let target = via.start(Options::default());
    let cases = [
        ("DateStyle", "nonsense", "22023"),
        ("no_such_parameter", "1", "42704"),
        ("client_encoding", "no-such-encoding", "22023"),
        ("options", "--no-such-option", "42601"),
        ("options", "-c work_mem=lots", "22023"),
        ("replication", "perhaps", "22023"),
    ];
    for (name, value, code) in cases {
        let frames =
            same_as_direct(&target, |address| start(address, &[("user", "postgres"), DATABASE, (name, value)], ""));
        assert_eq!(error_in(&frames).expect("an error").code(), code, "{name}={value}: {frames:?}");
    }
}

fn malformed_startup_packets(via: Via) {
    let target = via.start(Options::default());
    let good = message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), DATABASE]);
    let protocol = |protocol: u32| message::startup(protocol, &[("user", "postgres")]);
    let unterminated = message::untagged(&[&good[4..good.len() - 1], b"xy"].concat());
    let cases: [(&str, Vec<u8>); 15] = [
        ("HTTP", b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec()),
        ("TLS without asking", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("length 0", vec![0, 0, 0, 0]),
        ("length 3", vec![0, 0, 0, 3]),
        ("length 4", vec![0, 0, 0, 4]),
        ("length 7", vec![0, 0, 0, 7, 0, 3, 0]),
        ("negative length", vec![0xff; 8]),
        ("over the limit", 10_005u32.to_be_bytes().to_vec()),
        ("protocol 2.0", protocol(2 << 16)),
        ("protocol 4.0", protocol(4 << 16)),
        ("no protocol", protocol(0)),
        ("no terminator", unterminated),
        ("no user", message::startup(message::PROTOCOL_3_0, &[DATABASE])),
        ("empty", message::startup(message::PROTOCOL_3_0, &[])),
        ("cancel of nobody", message::cancel_request(&[0; 8])),
    ];
    for (what, packet) in cases {
        let reply = |address: &Address| {
            let mut wire = Wire::connect(address).unwrap();
            wire.send(&packet);
            wire.finish_sending();
            wire.bytes_to_end()
        };
        assert_bytes_eq(what, &reply(&target.address()), &reply(&target.postgres.address()));
    }
    // The limit itself is allowed: a parameter of almost 10,000 bytes.
    let long = "x".repeat(9_900);
    let frames = same_as_direct(&target, |address| {
        start(address, &[("user", "postgres"), DATABASE, ("my.long", long.as_str())], "")
    });
    assert_eq!(error_in(&frames), None);
    assert_unharmed(&target);
}

fn cut_short_startup_packets(via: Via) {
    let target = via.start(Options::default());
    let packet = message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), DATABASE]);
    for cut in 0..packet.len() {
        let mut wire = Wire::connect(&target.address()).unwrap();
        wire.send(&packet[..cut]);
        wire.finish_sending();
        assert_bytes_eq(&format!("{cut} bytes"), &wire.bytes_to_end(), b"");
    }
    assert_unharmed(&target);
}

fn cancel_over_tcp(via: Via) {
    let target = via.start(Options::default());
    cancels(&target, &target.address(), &target.address());
}

fn cancel_over_unix_socket(via: Via) {
    let target = via.start(Options::default());
    cancels(&target, &target.socket(), &target.socket());
    // A cancel request may use another address than its session.
    cancels(&target, &target.socket(), &target.address());
}

fn upstream_by_unix_socket(via: Via) {
    let target = via.start_with(Options::default(), &ProxyOptions::default().upstream_by_socket());
    cancels(&target, &target.address(), &target.address());
    cancels(&target, &target.socket(), &target.socket());
}

fn cancel_with_a_wrong_key(via: Via) {
    let target = via.start(Options::default());
    let (mut wire, mut key) = sleeping(&target, &target.address());
    *key.last_mut().unwrap() ^= 1;
    cancel(&target.address(), &key);
    assert!(is_asleep(&target), "a wrong key must cancel nothing");
    *key.last_mut().unwrap() ^= 1;
    cancel(&target.address(), &key);
    assert_eq!(error_in(&wire.read_until_ready()).unwrap().code(), "57014");
}

fn the_console_has_its_name(via: Via) {
    let target = via.start(Options::default());
    // Even if the server has a database of this name.
    target.postgres.sql("CREATE DATABASE fencegate");
    let mut console = Wire::login(&target.address(), "postgres", "fencegate");
    assert_eq!(error_in(&console.query("SELECT 2")).unwrap().code(), "42601");
    assert_eq!(console.rows("SHOW FENCES"), Ok(Vec::new()));
}

const DATABASE: (&str, &str) = ("database", "postgres");

/// The server trusts the proxy, so every client that reaches the server through it could claim any role.
fn the_proxys_identity_authenticates_no_client(_: Via) {
    let postgres = Postgres::start(Options::default().hba("host replication all 127.0.0.1/32 trust"));
    // Whether the server is reached by its Unix socket, the setting, and whether clients get in over TCP and over the
    // Unix socket.
    let cases: [(bool, &[&str], [bool; 2]); 8] = [
        (false, &[], [true, false]),
        (true, &[], [false, false]),
        (false, &["unix"], [true, true]),
        (true, &["unix"], [false, true]),
        (true, &["127.0.0.0/8"], [true, false]),
        (true, &["::ffff:127.0.0.1/128"], [true, false]),
        (true, &["127.0.0.1", "unix"], [true, true]),
        (true, &["10.0.0.0/8", "::1/128"], [false, false]),
    ];
    for (by_socket, allowed, expected) in cases {
        let options = ProxyOptions::default().requires_passwords();
        let options = if by_socket { options.upstream_by_socket() } else { options };
        let options = allowed.iter().fold(options, |options, it| options.arguments(&["--allow-unauthenticated", it]));
        let proxy = Proxy::start_with(&postgres, &options);
        for (address, gets_in) in [proxy.address(), proxy.socket()].into_iter().zip(expected) {
            for parameters in [
                &[("user", "postgres"), DATABASE][..],
                &[("user", "postgres"), ("database", "fencegate")],
                &[("user", "postgres"), DATABASE, ("replication", "database")],
                &[("user", "postgres"), ("replication", "true")],
            ] {
                let what = format!("{address:?}, by socket: {by_socket}, {allowed:?}, {parameters:?}");
                let frames = start(&address, parameters, "");
                if gets_in {
                    assert_eq!(error_in(&frames), None, "{what}");
                    continue;
                }
                let error = error_in(&frames).unwrap_or_else(|| panic!("{what}: {frames:?}"));
                assert_eq!((error.severity(), error.code()), ("FATAL", "28000"), "{what}");
                assert!(error.hint().contains("allow_unauthenticated"), "{what}");
                // No message of the server, and nothing after the error.
                assert!(frames.iter().all(|frame| frame.tag == b'E'), "{what}: {frames:?}");
            }
        }
    }
}

fn authenticated_clients_are_accepted_from_everywhere(_: Via) {
    let mut options = Options::default();
    for method in &METHODS[1..] {
        options = options.hba(&format!("local all {} {method}", role(method)));
    }
    let postgres = Postgres::start(options);
    for method in &METHODS[1..] {
        let encryption = if *method == "md5" { "md5" } else { "scram-sha-256" };
        let create = format!("CREATE ROLE {} LOGIN PASSWORD 'right'", role(method));
        postgres.sql(&format!("SET password_encryption = '{encryption}'; {create}"));
    }
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().requires_passwords().upstream_by_socket());
    for (method, address) in
        METHODS[1..].iter().flat_map(|method| [(method, proxy.address()), (method, proxy.socket())])
    {
        let user = role(method);
        assert_eq!(error_in(&start(&address, &[("user", &user), DATABASE], "right")), None, "{method}, {address:?}");
        let refused = error_in(&start(&address, &[("user", &user), DATABASE], "wrong")).unwrap();
        assert_eq!(refused.code(), "28P01", "{method}, {address:?}");
    }
}

/// A target with a role for each method, with the password "right".
fn target_with_roles(via: Via) -> Target {
    let mut options =
        Options::default().hba("host all refused 127.0.0.1/32 reject").hba("host all unwelcome 127.0.0.1/32 trust");
    for method in METHODS {
        options = options.hba(&format!("host all {} 127.0.0.1/32 {method}", role(method)));
    }
    let target = via.start(options);
    for method in METHODS {
        let encryption = if method == "md5" { "md5" } else { "scram-sha-256" };
        let create = format!("CREATE ROLE {} LOGIN PASSWORD 'right'", role(method));
        target.postgres.sql(&format!("SET password_encryption = '{encryption}'; {create}"));
    }
    target.postgres.sql("CREATE ROLE refused LOGIN; CREATE ROLE unwelcome NOLOGIN");
    target.postgres.sql("CREATE ROLE limited LOGIN CONNECTION LIMIT 0");
    target
}

fn role(method: &str) -> String {
    format!("by_{}", method.replace('-', "_"))
}

fn start(address: &Address, parameters: &[(&str, &str)], password: &str) -> Vec<Frame> {
    Wire::connect(address).unwrap().start(parameters, password)
}

/// The conversation has the same result with the target as with the server itself.
#[track_caller]
fn same_as_direct(target: &Target, conversation: impl Fn(&Address) -> Vec<Frame>) -> Vec<Frame> {
    let frames = conversation(&target.address());
    assert_eq!(exact(&frames), exact(&conversation(&target.postgres.address())));
    frames
}

#[track_caller]
fn assert_bytes_eq(what: &str, bytes: &[u8], expected: &[u8]) {
    assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{what}");
}

#[track_caller]
fn assert_unharmed(target: &Target) {
    assert_eq!(target.login().rows("SELECT 1").unwrap(), [[Some("1".to_owned())]]);
}

#[track_caller]
fn cancels(target: &Target, session: &Address, request: &Address) {
    let (mut wire, key) = sleeping(target, session);
    cancel(request, &key);
    assert_eq!(error_in(&wire.read_until_ready()).unwrap().code(), "57014");
    assert_eq!(wire.rows("SELECT 1").unwrap(), [[Some("1".to_owned())]]);
}

/// A session with a sleeping query, and the key to cancel it.
fn sleeping(target: &Target, address: &Address) -> (Wire, Vec<u8>) {
    let mut wire = Wire::connect(address).unwrap();
    let frames = wire.start(&[("user", "postgres"), DATABASE], "");
    let key = frames.into_iter().find(|frame| frame.tag == b'K').expect("a key").body;
    wire.send(&message::query("SELECT pg_sleep(600)"));
    wait_until("the query runs", DEADLINE, || is_asleep(target));
    (wire, key)
}

fn is_asleep(target: &Target) -> bool {
    target.postgres.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
}

/// Returns when the server has handled the request, which closes the connection without an answer.
fn cancel(address: &Address, key: &[u8]) {
    let mut wire = Wire::connect(address).unwrap();
    wire.send(&message::cancel_request(key));
    assert_bytes_eq("reply to a cancel request", &wire.bytes_to_end(), b"");
}
