//! Session starts, byte for byte: protocol versions, encryption requests in any order, packets and parameters of all
//! kinds, and passwords. `tests/behaviour/startup.rs` defines the expected results.

use crate::support::wire::exact;
use crate::support::{Address, Frame, Options, Postgres, Proxy, Release, Wire, message, proxy};
use std::fmt::Debug;

#[test]
fn sessions_start_alike() {
    start_alike(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn sessions_start_alike_with_18() {
    start_alike(Release::Eighteen);
}

/// A server, and a proxy in front of it.
struct Both {
    proxy: Proxy,
    postgres: Postgres,
}

impl Both {
    /// Compares the results of the conversation. Uses Unix sockets, which the server never encrypts.
    #[track_caller]
    fn compare<T: PartialEq + Debug>(&self, what: &impl Debug, conversation: impl Fn(&mut Wire) -> T) {
        let talk = |address: &Address| conversation(&mut Wire::connect(address).unwrap());
        assert_eq!(talk(&self.proxy.socket()), talk(&self.postgres.socket()), "{what:?}");
    }

    /// The same for a packet and the messages after it.
    fn compare_start(&self, packet: &[u8], password: &str) {
        let shown = packet[..packet.len().min(200)].escape_ascii().to_string();
        self.compare(&shown, |wire| {
            wire.send(packet);
            let frames = wire.authenticate("scram", password);
            (exact(&frames), key_length(&frames))
        });
    }
}

fn key_length(frames: &[Frame]) -> Option<usize> {
    frames.iter().find(|frame| frame.tag == b'K').map(|frame| frame.body.len())
}

fn start_alike(release: Release) {
    let roles = ["scram-sha-256", "md5", "password"].map(|method| format!("local all {} {method}", role(method)));
    let options = roles.iter().fold(Options::default().release(release), |options, line| options.hba(line));
    let postgres = Postgres::start(options);
    for (role, encryption) in [("scram", "scram-sha-256"), ("md5", "md5"), ("password", "scram-sha-256")] {
        postgres.sql(&format!("SET password_encryption = '{encryption}'; CREATE ROLE {role} LOGIN PASSWORD 'right'"));
    }
    let proxy = Proxy::start_with(&postgres, &proxy::ProxyOptions::default().upstream_by_socket());
    let both = Both { proxy, postgres };
    versions(&both);
    encryption(&both);
    parameters(&both);
    packets(&both);
    passwords(&both);
}

fn role(method: &str) -> &str {
    method.split('-').next().unwrap()
}

fn versions(both: &Both) {
    let plain = [("user", "postgres"), ("database", "postgres")];
    let options = [("user", "postgres"), ("_pq_.one", "1"), ("database", "postgres"), ("_pq_.two", "")];
    for parameters in [&plain[..], &options, &plain[..1], &[]] {
        let packet = |major: u32, minor: u32| message::startup((major << 16) | minor, parameters);
        for minor in [0, 1, 2, 3, 9999, 65535] {
            both.compare_start(&packet(3, minor), "");
        }
        for (major, minor) in [(0, 0), (1, 0), (2, 0), (2, 1), (4, 0), (1234, 1), (65535, 65535)] {
            both.compare(&(major, minor), |wire| {
                wire.send(&packet(major, minor));
                wire.bytes_to_end().escape_ascii().to_string()
            });
        }
    }
}

fn encryption(both: &Both) {
    let (ssl, gss) = (message::ssl_request(), message::gss_enc_request());
    let start = message::startup(message::PROTOCOL_3_0, &[("user", "postgres")]);
    let orders = ["s", "g", "ss", "gg", "sg", "gs", "sgs", "gsg", "sgg", "gss", "sgsgsgsgsg", "sgsgsgsgss"];
    for order in orders {
        both.compare(&order, |wire| {
            for request in order.chars() {
                wire.send(if request == 's' { &ssl } else { &gss });
                if let Some(answer) = wire.byte().filter(|answer| *answer != b'N') {
                    return (Vec::new(), [vec![answer], wire.bytes_to_end()].concat());
                }
            }
            wire.send(&start);
            (exact(&wire.authenticate("", "")), Vec::new())
        });
    }
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    for sent in [[&ssl[..], &start].concat(), [&gss[..], &start].concat(), [&ssl[..], &ssl].concat(), hello] {
        both.compare(&sent, |wire| {
            wire.send(&sent);
            wire.bytes_to_end()
        });
    }
    // A client that begins TLS despite the refusal.
    both.compare(&"TLS all the same", |wire| {
        wire.send(&ssl);
        assert_eq!(wire.byte(), Some(b'N'));
        wire.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
        wire.bytes_to_end()
    });
}

fn parameters(both: &Both) {
    // No packet repeats `user`, `database` or `replication`, because the proxy refuses that.
    let cases: [&[(&str, &str)]; 15] = [
        &[("user", "nobody")],
        &[("database", ""), ("user", "postgres")],
        &[("user", "postgres"), ("database", "no such")],
        &[("user", "postgres"), ("nonsense", "1")],
        &[("user", "postgres"), ("a.b", "1"), ("a.b", "2")],
        &[("user", "postgres"), ("DateStyle", "nonsense")],
        &[("user", "postgres"), ("options", "-c")],
        &[("user", "postgres"), ("options", "-c work_mem=1 --nonsense")],
        &[("user", "postgres"), ("options", "-c\\ work_mem=1")],
        &[("user", "postgres"), ("replication", "maybe")],
        &[("user", "postgres"), ("replication", "true")],
        &[("user", "postgres"), ("replication", "database")],
        &[("user", "postgres"), ("client_encoding", "LATIN1"), ("application_name", "tëst")],
        &[("user", "postgres"), ("work_mem", "lots")],
        &[("user", "postgres"), ("shared_buffers", "1MB")],
    ];
    for parameters in cases {
        both.compare_start(&message::startup(message::PROTOCOL_3_0, parameters), "");
    }
}

fn packets(both: &Both) {
    let good = message::startup(message::PROTOCOL_3_0, &[("user", "postgres")]);
    // The longest packets that are allowed, and the shortest that are too long.
    let fixed = message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), ("a.b", "")]).len();
    let long = (9_999..10_008).map(|length| {
        let value = "x".repeat(length - fixed);
        message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), ("a.b", &value)])
    });
    let body = &good[4..];
    let wrong = [
        message::untagged(&body[..body.len() - 1]),
        message::untagged(&[body, b"x"].concat()),
        message::untagged(&[&body[..body.len() - 1], b"name\0"].concat()),
        message::untagged(&body[..4]),
        message::cancel_request(b""),
        message::cancel_request(&[0; 4]),
        message::cancel_request(&[1; 8]),
        message::cancel_request(&[1; 300]),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0, 0, 0, 7, 0, 0, 0],
        vec![0xff; 8],
    ];
    for packet in long.chain(wrong) {
        both.compare(&packet.len(), |wire| {
            wire.send(&packet);
            // A valid packet starts a session, which ends at once.
            wire.send(&message::terminate());
            wire.finish_sending();
            exact(&wire.read_to_end())
        });
    }
}

fn passwords(both: &Both) {
    let start = |role: &str| message::startup(message::PROTOCOL_3_0, &[("user", role), ("database", "postgres")]);
    for role in ["scram", "md5", "password"] {
        for password in ["right", "wrong"] {
            both.compare(&(role, password), |wire| {
                wire.send(&start(role));
                exact(&wire.authenticate(role, password))
            });
        }
        let answers = [
            message::query("SELECT 1"),
            message::terminate(),
            message::password(""),
            message::tagged(b'p', b""),
            message::tagged(b'p', b"no terminator"),
            message::tagged(b'p', &[b'x'; 65_530]),
            message::tagged(b'p', &[b'x'; 65_533]),
            message::tagged(b'p', &[b'x'; 70_000]),
            message::header(b'p', 0),
            message::sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=nonce"),
            message::sasl_initial_response("SCRAM-SHA-256", b"nonsense"),
            message::sasl_initial_response("SCRAM-SHA-256-PLUS", b"p=tls-unique,,n=,r=nonce"),
            message::sasl_initial_response("NOTHING", b""),
            Vec::new(),
        ];
        for answer in answers {
            both.compare(&(role, answer.escape_ascii().to_string()), |wire| {
                wire.send(&start(role));
                let asked = wire.frame().expect("a request");
                wire.send(&answer);
                wire.finish_sending();
                exact(&[vec![asked], wire.read_to_end()].concat())
            });
        }
    }
}
