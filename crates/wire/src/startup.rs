//! Packets before authentication: an i32 length that includes itself, an i32 code, and a body. PostgreSQL
//! documentation, chapters "Start-up", "SSL Session Encryption" and "Canceling Requests in Progress".

use super::frame::split_string;
use bytes::{BufMut, Bytes, BytesMut};

/// The server's limit for a startup packet, in bytes: `MAX_STARTUP_PACKET_LENGTH` plus the length field.
pub const MAX_PACKET: usize = 10_004;

/// Longest name of a role or database, in bytes (`NAMEDATALEN`). Servers up to version 16 truncate longer names.
const MAX_NAME: usize = 63;

/// Parameters that identify the kind and the owner of the session, and must not repeat. The server combines repeated
/// values of `replication`: `database`, then `true`, is a session with SQL. No honest client sends one twice.
const SINGLE: [&str; 3] = ["user", "database", "replication"];

/// First bytes of PROXY protocol headers, versions 1 and 2. No packet has such a length.
const PROXY_HEADERS: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];

const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_ENCRYPTION_REQUEST: u32 = 80_877_104;

/// The first packet of a connection, or the packet after a refused encryption request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Requests TLS.
    SslRequest,
    /// Requests GSSAPI encryption.
    GssEncryptionRequest,
    /// Requests the cancellation of another connection's statement. The key is opaque, and its length depends on the
    /// protocol version.
    CancelRequest(Bytes),
    /// Starts a session.
    Startup(Startup),
}

/// The parameters of a StartupMessage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startup {
    /// The whole packet, which is forwarded unchanged.
    pub packet: Bytes,
    parameters: Vec<(String, String)>,
}

/// Why a packet is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPacket {
    /// The length is below 8 or above [`MAX_PACKET`].
    #[error("invalid length of startup packet")]
    Length,
    /// A load balancer announces the client's address.
    #[error("the connection begins with a PROXY protocol header, which fencegate does not accept from this address")]
    ProxyHeader,
    /// The client has sent more than the request for encryption. The rest would count as encrypted (CVE-2021-23214).
    #[error("received unencrypted data after a request for encryption")]
    Unencrypted,
    /// Not protocol version 3.
    #[error("unsupported frontend protocol {0}.{1}: server supports 3.0 and later")]
    Version(u16, u16),
    /// The parameters are not pairs of strings followed by one NUL.
    #[error("invalid startup packet layout: expected terminator as last byte")]
    Layout,
    /// A parameter is not UTF-8. The proxy and the server could read it differently.
    #[error("startup parameters are not valid UTF-8")]
    Encoding,
    /// A name that the server would truncate within a character.
    #[error("name of user or database is longer than 63 bytes")]
    Name,
    /// No user.
    #[error("no PostgreSQL user name specified in startup packet")]
    User,
    /// A parameter that determines the kind of session occurs twice.
    #[error("startup parameter \"{0}\" is given more than once")]
    Repeated(&'static str),
}

/// Length of the packet at the start of `input`, in bytes. Returns `None` if the length field is incomplete.
///
/// # Errors
/// [`InvalidPacket::Length`] or [`InvalidPacket::ProxyHeader`].
pub fn packet_length(input: &[u8]) -> Result<Option<usize>, InvalidPacket> {
    let Some((length, _)) = input.split_first_chunk::<4>() else { return Ok(None) };
    // The header may be incomplete.
    let begins = |header: &&[u8]| input.iter().zip(*header).all(|(byte, expected)| byte == expected);
    match u32::from_be_bytes(*length) as usize {
        length @ 8..=MAX_PACKET => Ok(Some(length)),
        _ if PROXY_HEADERS.iter().any(begins) => Err(InvalidPacket::ProxyHeader),
        _ => Err(InvalidPacket::Length),
    }
}

/// A cancel request with this key: the body of the session's BackendKeyData.
pub fn cancel_request(key: &[u8]) -> Bytes {
    let mut packet = BytesMut::new();
    packet.put_u32(8 + key.len() as u32);
    packet.put_u32(CANCEL_REQUEST);
    packet.put_slice(key);
    packet.freeze()
}

/// The key in a cancel request.
pub fn cancel_key(packet: &[u8]) -> &[u8] {
    packet.get(8..).unwrap_or_default()
}

/// The server's error for an encryption request that is repeated after a refusal: the server reads it as a version.
pub fn repeated(packet: &[u8]) -> InvalidPacket {
    let half = |at: usize| packet.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    InvalidPacket::Version(half(4), half(6))
}

/// Parses a complete packet.
///
/// # Errors
/// The packet is invalid.
pub fn read(packet: Bytes) -> Result<Packet, InvalidPacket> {
    let (_, rest) = packet.split_first_chunk::<4>().ok_or(InvalidPacket::Length)?;
    let (code, body) = rest.split_first_chunk::<4>().ok_or(InvalidPacket::Length)?;
    match u32::from_be_bytes(*code) {
        SSL_REQUEST => Ok(Packet::SslRequest),
        GSS_ENCRYPTION_REQUEST => Ok(Packet::GssEncryptionRequest),
        CANCEL_REQUEST => Ok(Packet::CancelRequest(packet)),
        version if version >> 16 == 3 => {
            let parameters = parameters(body)?;
            let startup = Startup { packet, parameters };
            if let Some(name) = SINGLE.into_iter().find(|name| startup.given(name).nth(1).is_some()) {
                return Err(InvalidPacket::Repeated(name));
            }
            if startup.parameter("user").is_none_or(str::is_empty) {
                return Err(InvalidPacket::User);
            }
            let is_cut = |name: &str| name.len() > MAX_NAME && !name.is_char_boundary(MAX_NAME);
            if ["user", "database"].into_iter().filter_map(|name| startup.parameter(name)).any(is_cut) {
                return Err(InvalidPacket::Name);
            }
            Ok(Packet::Startup(startup))
        }
        version => Err(InvalidPacket::Version((version >> 16) as u16, version as u16)),
    }
}

fn parameters(mut body: &[u8]) -> Result<Vec<(String, String)>, InvalidPacket> {
    let mut parameters = Vec::new();
    loop {
        let (name, rest) = split_string(body).ok_or(InvalidPacket::Layout)?;
        if name.is_empty() {
            return if rest.is_empty() { Ok(parameters) } else { Err(InvalidPacket::Layout) };
        }
        let (value, rest) = split_string(rest).ok_or(InvalidPacket::Layout)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| InvalidPacket::Encoding);
        parameters.push((text(name)?, text(value)?));
        body = rest;
    }
}

/// The kind of a session, according to its startup parameter `replication`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// An ordinary session.
    None,
    /// Physical replication: connected to no database. The server refuses SQL.
    Physical,
    /// Logical replication: connected to a database. Runs SQL and replication commands.
    Logical,
}

impl Startup {
    /// The last value of a parameter, which the server uses. Parameters that are not settings have lowercase names.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.given(name).last()
    }

    fn given(&self, name: &str) -> impl Iterator<Item = &str> {
        self.parameters.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The login role, truncated as by the server.
    pub fn user(&self) -> &str {
        significant(self.parameter("user").unwrap_or_default())
    }

    /// The database, truncated as by the server. Default: the role's name.
    pub fn database(&self) -> &str {
        self.parameter("database").filter(|name| !name.is_empty()).map_or_else(|| self.user(), significant)
    }

    /// Returns the packet with this database, for an ordinary session.
    pub fn for_database(&self, database: &str) -> Bytes {
        let version = self.packet.get(4..8).unwrap_or_default();
        let own = [("user", self.user()), ("database", database)];
        let other = self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let other = other.filter(|(name, _)| !["user", "database", "replication"].contains(name));
        let mut body = BytesMut::new();
        for (name, value) in own.into_iter().chain(other) {
            body.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
        }
        body.put_u8(0);
        let length = (4 + version.len() + body.len()) as u32;
        [&length.to_be_bytes(), version, &body].concat().into()
    }

    /// The kind of the session. Values that are not booleans count as logical.
    pub fn replication(&self) -> Replication {
        match self.parameter("replication").map(boolean) {
            None | Some(Some(false)) => Replication::None,
            Some(Some(true)) => Replication::Physical,
            // `database`, or a value that the server refuses.
            Some(None) => Replication::Logical,
        }
    }
}

/// Parses a boolean as the server does (`parse_bool`): any unambiguous prefix of a word, case-insensitive.
fn boolean(value: &str) -> Option<bool> {
    const WORDS: [(&str, usize, bool); 6] = [
        ("true", 1, true),
        ("false", 1, false),
        ("yes", 1, true),
        ("no", 1, false),
        ("on", 2, true),
        ("off", 2, false),
    ];
    let value = value.to_ascii_lowercase();
    let is_meant = |(word, shortest, _): &&(&str, usize, bool)| value.len() >= *shortest && word.starts_with(&value);
    match value.as_str() {
        "1" => Some(true),
        "0" => Some(false),
        _ => WORDS.iter().find(is_meant).map(|(_, _, meaning)| *meaning),
    }
}

fn significant(name: &str) -> &str {
    name.get(..MAX_NAME).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(version: u32, body: &[u8]) -> Bytes {
        let mut packet = ((body.len() + 8) as u32).to_be_bytes().to_vec();
        packet.extend(version.to_be_bytes());
        packet.extend(body);
        packet.into()
    }

    fn startup(version: u32, body: &[u8]) -> Startup {
        match read(packet(version, body)) {
            Ok(Packet::Startup(startup)) => startup,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn startup_parameters() {
        let startup = startup(0x30000, b"user\0ada\0options\0-c lease.fence=1\0\0");
        assert_eq!((startup.user(), startup.database()), ("ada", "ada"));
        assert_eq!(startup.parameter("options"), Some("-c lease.fence=1"));
        assert_eq!(startup.replication(), Replication::None);
    }

    #[test]
    fn the_packet_can_name_another_database() {
        for body in [&b"user\0ada\0options\0-c a=b\0\0"[..], b"database\0x\0user\0ada\0options\0-c a=b\0\0"] {
            let other = startup(0x30002, body).for_database("app");
            assert_eq!(other, packet(0x30002, b"user\0ada\0database\0app\0options\0-c a=b\0\0"));
        }
    }

    #[test]
    fn names_are_truncated_as_by_the_server() {
        let long = ["user\0", &"u".repeat(64), "\0database\0", &"d".repeat(80), "\0\0"].concat();
        let startup = startup(0x30000, long.as_bytes());
        assert_eq!((startup.user(), startup.database()), ("u".repeat(63).as_str(), "d".repeat(63).as_str()));
    }

    #[test]
    fn each_malformed_packet_has_its_own_error() {
        assert_eq!(read(packet(0x30000, b"user\0ada\0")), Err(InvalidPacket::Layout));
        assert_eq!(read(packet(0x30000, b"user\0ada\0\0x")), Err(InvalidPacket::Layout));
        assert_eq!(read(packet(0x30000, b"database\0x\0\0")), Err(InvalidPacket::User));
        assert_eq!(read(packet(0x30000, b"user\0\xff\0\0")), Err(InvalidPacket::Encoding));
        let cut = ["user\0", &"u".repeat(62), "ü\0\0"].concat();
        assert_eq!(read(packet(0x30000, cut.as_bytes())), Err(InvalidPacket::Name));
        assert_eq!(read(packet(0x20000, b"")), Err(InvalidPacket::Version(2, 0)));
        assert_eq!(packet_length(b"GET / HTTP"), Err(InvalidPacket::Length));
        assert_eq!(packet_length(&[0, 0, 0, 7]), Err(InvalidPacket::Length));
        for header in [
            &b"PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\n"[..],
            b"PROX",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
            b"\r\n\r\n",
        ] {
            assert_eq!(packet_length(header), Err(InvalidPacket::ProxyHeader));
        }
        for other in [&b"PROXX"[..], b"PROFIT", b"\r\n\r\n\r\n"] {
            assert_eq!(packet_length(other), Err(InvalidPacket::Length));
        }
        assert_eq!(packet_length(&[0, 0]), Ok(None));
    }

    #[test]
    fn only_true_values_mean_physical_replication() {
        let replication = |value: &str| {
            let body = [b"user\0a\0replication\0", value.as_bytes(), b"\0\0"].concat();
            startup(0x30002, &body).replication()
        };
        for value in ["database", "Database", "database ", "o", "truely", " true", "2", ""] {
            assert_eq!(replication(value), Replication::Logical, "{value}");
        }
        for value in ["true", "tru", "T", "y", "on", "ON", "1"] {
            assert_eq!(replication(value), Replication::Physical, "{value}");
        }
        for value in ["off", "of", "F", "n", "no", "0"] {
            assert_eq!(replication(value), Replication::None, "{value}");
        }
    }

    #[test]
    fn parameters_that_identify_the_session_must_not_repeat() {
        for name in ["user", "database", "replication"] {
            let body = format!("user\0a\0{name}\0database\0{name}\0true\0\0");
            assert_eq!(read(packet(0x30000, body.as_bytes())), Err(InvalidPacket::Repeated(name)));
        }
        let settings = b"user\0a\0options\0-c a=b\0options\0-c a=c\0DateStyle\0ISO\0datestyle\0German\0\0";
        assert!(matches!(read(packet(0x30000, settings)), Ok(Packet::Startup(_))));
    }
}
