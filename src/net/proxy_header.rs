//! PROXY protocol: a load balancer announces the address of its client before the client's first packet.
//!
//! Owns the limits of a header. Must never make a client more trusted than its connection: an announced address never
//! counts as one of this machine.
//!
//! Not cancel-safe: a header that was read in part is lost.

use ppp::{v1, v2};
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum length of a header of version 1, in bytes, with its end of line.
const LONGEST_LINE: usize = 107;
/// Maximum length of a header of version 2 after its first 16 bytes.
const LONGEST_REST: usize = 520;
/// Length of the first read: no header is shorter, nor is any packet of PostgreSQL.
const FIRST: usize = 8;
/// Length of the fixed part of version 2. Its last two bytes are the length of the rest.
const FIXED: usize = 16;
const LINE: &[u8] = b"PROXY ";

/// The client of a connection from a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// A client at this address.
    Client(SocketAddr),
    /// The load balancer itself, for a health check.
    Balancer,
    /// A client without an IP address.
    Unknown,
}

/// Why there is no header.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The connection was closed before it sent a byte.
    #[error("no header before the end of the connection")]
    Left,
    /// The connection begins with something else.
    #[error("the connection does not begin with a PROXY protocol header")]
    Missing,
    /// The header is invalid.
    #[error("invalid PROXY protocol header: {0}")]
    Invalid(#[from] InvalidHeader),
    /// The socket's error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The fault of an invalid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    /// Longer than this many bytes.
    #[error("longer than {0} bytes")]
    Length(usize),
    /// Not a line of version 1.
    #[error("malformed line of version 1")]
    Line,
    /// Not a block of version 2.
    #[error("malformed block of version 2")]
    Block,
}

/// Reads the header, and nothing after it.
///
/// # Errors
/// There is no valid header.
pub async fn read(socket: &mut (impl AsyncRead + Unpin)) -> Result<Announced, HeaderError> {
    let mut header = vec![0; FIRST];
    match socket.read(&mut header).await {
        Ok(0) | Err(_) => return Err(HeaderError::Left),
        Ok(read) => fill(socket, &mut header[read..]).await?,
    };
    if header.starts_with(LINE) {
        while !header.ends_with(b"\r\n") {
            if header.len() == LONGEST_LINE {
                return Err(InvalidHeader::Length(LONGEST_LINE).into());
            }
            header.push(0);
            let last = header.len() - 1;
            fill(socket, &mut header[last..]).await?;
        }
        return line(&header);
    }
    if header != v2::PROTOCOL_PREFIX[..FIRST] {
        return Err(HeaderError::Missing);
    }
    header.resize(FIXED, 0);
    fill(socket, &mut header[FIRST..]).await?;
    let rest = usize::from(u16::from_be_bytes([header[FIXED - 2], header[FIXED - 1]]));
    if rest > LONGEST_REST {
        return Err(InvalidHeader::Length(FIXED + LONGEST_REST).into());
    }
    header.resize(FIXED + rest, 0);
    fill(socket, &mut header[FIXED..]).await?;
    block(&header)
}

async fn fill(socket: &mut (impl AsyncRead + Unpin), part: &mut [u8]) -> Result<(), HeaderError> {
    match socket.read_exact(part).await {
        Ok(_) => Ok(()),
        // Health checks of load balancers do this.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(HeaderError::Left),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(io::Error::new(error.kind(), "the connection was closed within the PROXY protocol header").into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Version 1.
fn line(header: &[u8]) -> Result<Announced, HeaderError> {
    let header = v1::Header::try_from(header).map_err(|_| InvalidHeader::Line)?;
    Ok(match header.addresses {
        v1::Addresses::Tcp4(it) => client(it.source_address, it.source_port),
        v1::Addresses::Tcp6(it) => client(it.source_address, it.source_port),
        v1::Addresses::Unknown => Announced::Unknown,
    })
}

/// Version 2.
fn block(header: &[u8]) -> Result<Announced, HeaderError> {
    let header = v2::Header::try_from(header).map_err(|_| InvalidHeader::Block)?;
    Ok(match (header.command, header.addresses) {
        (v2::Command::Local, _) => Announced::Balancer,
        (v2::Command::Proxy, v2::Addresses::IPv4(it)) => client(it.source_address, it.source_port),
        (v2::Command::Proxy, v2::Addresses::IPv6(it)) => client(it.source_address, it.source_port),
        (v2::Command::Proxy, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => Announced::Unknown,
    })
}

fn client(address: impl Into<IpAddr>, port: u16) -> Announced {
    Announced::Client((address.into(), port).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result, and the input that was not read.
    async fn read_from(mut input: &[u8]) -> (Result<Announced, HeaderError>, usize) {
        let header = read(&mut input).await;
        (header, input.len())
    }

    fn version_2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family], &length, addresses].concat()
    }

    #[tokio::test]
    async fn headers_announce_addresses() {
        let announced = |address: &str| Announced::Client(address.parse().unwrap());
        let v4 = version_2(0x21, 0x11, &[192, 0, 2, 1, 192, 0, 2, 9, 0, 7, 0, 9]);
        let with_more = version_2(0x21, 0x11, &[&[192, 0, 2, 1, 192, 0, 2, 9, 0, 7, 0, 9][..], &[4, 0, 1, 0]].concat());
        let v6 = version_2(0x21, 0x21, &[&[0x20, 1, 0xd, 0xb8][..], &[0; 28], &[0, 7, 0, 9]].concat());
        for (header, expected) in [
            (&b"PROXY TCP4 192.0.2.1 192.0.2.9 7 9\r\n"[..], announced("192.0.2.1:7")),
            (b"PROXY TCP6 2001:db8:: ::1 7 9\r\n", announced("[2001:db8::]:7")),
            (b"PROXY UNKNOWN\r\n", Announced::Unknown),
            (&v4, announced("192.0.2.1:7")),
            (&with_more, announced("192.0.2.1:7")),
            (&v6, announced("[2001:db8::]:7")),
            (&version_2(0x20, 0, &[]), Announced::Balancer),
            (&version_2(0x21, 0, &[]), Announced::Unknown),
            (&version_2(0x21, 0x31, &[0; 216]), Announced::Unknown),
        ] {
            let (read, rest) = read_from(&[header, b"packet"].concat()).await;
            assert_eq!((read.unwrap(), rest), (expected, 6), "{header:?}");
        }
    }

    #[tokio::test]
    async fn other_input_is_refused_within_bounds() {
        let long = version_2(0x21, 0x11, &[0; 521]);
        for (header, expected) in [
            (&b"PROXY TCP4 nonsense\r\n"[..], InvalidHeader::Line),
            (b"PROXY TCP9 ::1 ::1 1 1\r\n", InvalidHeader::Line),
            (&version_2(0x2f, 0x11, &[0; 12]), InvalidHeader::Block),
            (&long, InvalidHeader::Length(FIXED + LONGEST_REST)),
        ] {
            let read = read_from(header).await.0;
            assert!(matches!(read, Err(HeaderError::Invalid(why)) if why == expected), "{header:?}");
        }
        let (endless, rest) = read_from(&[b"PROXY ", &[b'x'; 1000][..]].concat()).await;
        assert!(
            matches!(endless, Err(HeaderError::Invalid(InvalidHeader::Length(LONGEST_LINE))))
                && rest == 1006 - LONGEST_LINE
        );
        let missing = [&b"\0\0\0\x08\x04\xd2\x16\x2f"[..], b"\x16\x03\x01\x02\0\x01\0\0", b"\r\n\r\n\0\r\nX"];
        for header in missing {
            assert!(matches!(read_from(header).await.0, Err(HeaderError::Missing)), "{header:?}");
        }
        assert!(matches!(read_from(b"").await.0, Err(HeaderError::Left)));
        for cut in [&b"PROX"[..], b"PROXY TCP4 192.", &long[..14], &long[..10]] {
            assert!(matches!(read_from(cut).await.0, Err(HeaderError::Io(_))), "{cut:?}");
        }
    }
}
