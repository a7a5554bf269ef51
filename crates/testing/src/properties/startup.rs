//! Startup packets, compared with a second, independent decoder.

use fencegate_wire::startup::{InvalidPacket, MAX_PACKET, Packet, Replication, Startup, packet_length, read};

pub fn check(input: &[u8]) -> bool {
    let length = packet_length(input);
    match input.first_chunk() {
        None => assert_eq!(length, Ok(None)),
        Some(start) => match usize::try_from(i32::from_be_bytes(*start)) {
            Ok(expected @ 8..=MAX_PACKET) => assert_eq!(length, Ok(Some(expected))),
            _ => assert_eq!(length, Err(InvalidPacket::Length)),
        },
    }
    let packet = match length {
        Ok(Some(length)) => &input[..length.min(input.len())],
        _ => input,
    };
    let found = read(packet.to_vec().into());
    let Some((code, body)) = packet.get(4..).and_then(|rest| rest.split_first_chunk()) else {
        assert_eq!(found, Err(InvalidPacket::Length));
        return false;
    };
    match u32::from_be_bytes(*code) {
        80_877_102 => assert_eq!(found, Ok(Packet::CancelRequest(packet.to_vec().into()))),
        80_877_103 => assert_eq!(found, Ok(Packet::SslRequest)),
        80_877_104 => assert_eq!(found, Ok(Packet::GssEncryptionRequest)),
        version if version >> 16 == 3 => starts_session(packet, body, &found),
        version => {
            assert_eq!(found, Err(InvalidPacket::Version((version >> 16) as u16, (version & 0xffff) as u16)));
        }
    }
    found.is_ok()
}

fn starts_session(packet: &[u8], body: &[u8], found: &Result<Packet, InvalidPacket>) {
    let Some(parameters) = pairs(body) else {
        // The decoder may find either fault first.
        return assert!(matches!(found, Err(InvalidPacket::Layout | InvalidPacket::Encoding)), "{found:?}");
    };
    let Some(parameters) = parameters.into_iter().map(as_text).collect::<Option<Vec<_>>>() else {
        return assert_eq!(*found, Err(InvalidPacket::Encoding));
    };
    let is_repeated = |wanted: &&str| parameters.iter().filter(|(name, _)| name == wanted).count() > 1;
    if let Some(name) = ["user", "database", "replication"].into_iter().find(is_repeated) {
        return assert_eq!(*found, Err(InvalidPacket::Repeated(name)));
    }
    let last = |name: &str| parameters.iter().filter(|(key, _)| *key == name).map(|(_, value)| *value).next_back();
    let Some(user) = last("user").filter(|user| !user.is_empty()) else {
        return assert_eq!(*found, Err(InvalidPacket::User));
    };
    let database = last("database").filter(|name| !name.is_empty()).unwrap_or(user);
    let ends_in_a_character = |name: &str| name.len() > 63 && !name.is_char_boundary(63);
    if ends_in_a_character(user) || ends_in_a_character(database) {
        return assert_eq!(*found, Err(InvalidPacket::Name));
    }
    let [user, database] = [user, database].map(|name| &name[..name.len().min(63)]);
    let Ok(Packet::Startup(startup)) = found else { panic!("{found:?}") };
    assert_eq!(startup.packet, packet);
    assert_eq!(startup.user(), user);
    assert_eq!(startup.database(), database);
    for (name, _) in &parameters {
        assert_eq!(startup.parameter(name), last(name), "{name}");
    }
    in_another_database(startup, &parameters);
}

/// Returns the names and values. Each string ends with a NUL, and one more NUL ends the list.
fn pairs(body: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let strings: Vec<&[u8]> = body.split(|byte| *byte == 0).collect();
    let (parameters, end) = strings.split_at(strings.len().checked_sub(2)?);
    let whole = end.iter().all(|string| string.is_empty()) && parameters.len() % 2 == 0;
    let pairs: Vec<_> = parameters.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    (whole && pairs.iter().all(|(name, _)| !name.is_empty())).then_some(pairs)
}

fn as_text<'a>((name, value): (&'a [u8], &'a [u8])) -> Option<(&'a str, &'a str)> {
    Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
}

fn in_another_database(startup: &Startup, parameters: &[(&str, &str)]) {
    let packet = startup.for_database("another");
    assert_eq!(packet[..4], (packet.len() as u32).to_be_bytes());
    assert_eq!(packet[4..8], startup.packet[4..8]);
    let Ok(Packet::Startup(other)) = read(packet) else { panic!("not a startup packet") };
    assert_eq!((other.user(), other.database(), other.replication()), (startup.user(), "another", Replication::None));
    for (name, _) in parameters.iter().filter(|(name, _)| !["user", "database", "replication"].contains(name)) {
        assert_eq!(other.parameter(name), startup.parameter(name), "{name}");
    }
}
