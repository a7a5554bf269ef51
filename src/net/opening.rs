//! Requests of a client before its session: for encryption, up to the startup packet or a cancel request.
//!
//! Must never treat bytes that arrived in clear text as encrypted.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a socket closes it.

use super::login::MAX_AUTHENTICATION;
use super::peer::Peer;
use super::refused::{Refused, refuse};
use super::stream::{Carrier, Stream};
use super::upstream;
use crate::state::connections::Seat;
use crate::state::shared::Shared;
use crate::tls::Acceptor;
use bytes::{Bytes, BytesMut};
use fencegate_wire::error::ErrorText;
use fencegate_wire::frame::Header;
use fencegate_wire::startup::{self, InvalidPacket, Packet};
use fencegate_wire::tag::backend;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Time limit of a server query outside sessions, including the wait for one of the few connections for it.
pub const SERVER_LIMIT: Duration = Duration::from_secs(10);

/// First byte of a client that starts TLS directly: a handshake record. No valid packet is that long.
const TLS_HANDSHAKE: u8 = 0x16;

/// Why no valid startup packet was received.
pub enum OpeningError {
    /// Holds the packets that make the server report the fault; the server refuses each except the last. Empty if the
    /// proxy itself reports it.
    Invalid(InvalidPacket, Vec<Bytes>, Box<Peer>),
    /// The client disconnected without a packet, like monitors that only check whether the port is open.
    Left,
    /// The client disconnected, or the TLS handshake failed.
    Io(io::Error),
}

impl From<io::Error> for OpeningError {
    fn from(error: io::Error) -> Self {
        OpeningError::Io(error)
    }
}

/// Answers requests for encryption, each kind at most once, up to the startup packet or cancel request.
pub async fn read_opening(shared: &Shared, stream: Stream, seat: &Seat) -> Result<(Peer, Packet), OpeningError> {
    let encryption = shared.encryption();
    let acceptor = encryption.clients.as_ref();
    let mut client = Peer::new(begin(acceptor, stream, seat).await?);
    let mut refused = Vec::new();
    loop {
        let packet = match read_packet(&mut client).await? {
            Ok(packet) => packet,
            Err(why) => return Err(OpeningError::Invalid(why, Vec::new(), Box::new(client))),
        };
        let request = match startup::read(packet.clone()) {
            Ok(request @ (Packet::SslRequest | Packet::GssEncryptionRequest)) => request,
            Ok(packet) => return Ok((client, packet)),
            // The server would accept the packet.
            Err(why @ InvalidPacket::Repeated(_)) => {
                return Err(OpeningError::Invalid(why, Vec::new(), Box::new(client)));
            }
            Err(why) => return Err(OpeningError::Invalid(why, vec![packet], Box::new(client))),
        };
        seat.speaks();
        let why = startup::repeated(&packet);
        if client.secured.is_some() {
            return Err(OpeningError::Invalid(why, Vec::new(), Box::new(client)));
        }
        if refused.contains(&packet) {
            refused.push(packet);
            return Err(OpeningError::Invalid(why, refused, Box::new(client)));
        }
        if !client.reader.input.is_empty() {
            // Do not forward the client's later input: a server that misses the fault would execute it. If the proxy
            // has TLS and the server does not, the server could not report the fault either.
            let sent = if acceptor.is_some() { Vec::new() } else { vec![[&packet[..], b"\0"].concat().into()] };
            return Err(OpeningError::Invalid(InvalidPacket::Unencrypted, sent, Box::new(client)));
        }
        match (acceptor, request, client.is_tcp()) {
            (Some(acceptor), Packet::SslRequest, true) => client = accept(acceptor, client).await?,
            _ => {
                client.writer.output.extend_from_slice(b"N");
                client.writer.flush().await?;
                refused.push(packet);
            }
        }
    }
}

/// The client's socket, encrypted if the client starts TLS directly. Like the server, checks the first byte.
async fn begin(acceptor: Option<&Acceptor>, stream: Stream, seat: &Seat) -> Result<Stream, OpeningError> {
    let (Some(acceptor), Stream::Tcp(socket)) = (acceptor, &stream) else { return Ok(stream) };
    let mut first = [0];
    let peeked = socket.peek(&mut first).await.map_err(|_| OpeningError::Left)?;
    match stream {
        Stream::Tcp(socket) if peeked == 1 && first == [TLS_HANDSHAKE] => {
            seat.speaks();
            Ok(tls_handshake(acceptor, socket, true).await?)
        }
        stream => Ok(stream),
    }
}

/// Accepts a client's request for TLS.
async fn accept(acceptor: &Acceptor, mut client: Peer) -> io::Result<Peer> {
    client.writer.output.extend_from_slice(b"S");
    client.writer.flush().await?;
    let socket = client.into_tcp().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(Peer::new(tls_handshake(acceptor, socket, false).await?))
}

async fn tls_handshake(acceptor: &Acceptor, socket: TcpStream, direct: bool) -> io::Result<Stream> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("TLS: {error}"));
    let (stream, secured) = acceptor.accept(Carrier::Runtime(socket), direct).await.map_err(failed)?;
    Ok(Stream::Tls(Box::new(stream.into()), secured))
}

/// The next packet, or the error of its length. Cancel-safe.
async fn read_packet(client: &mut Peer) -> Result<Result<Bytes, InvalidPacket>, OpeningError> {
    loop {
        let reader = &mut client.reader;
        match startup::packet_length(&reader.input) {
            Err(why) => return Ok(Err(why)),
            Ok(Some(length)) if reader.input.len() >= length => return Ok(Ok(reader.input.split_to(length).freeze())),
            Ok(_) if reader.ended && reader.input.is_empty() => return Err(OpeningError::Left),
            Ok(_) if reader.ended => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => match reader.fill().await {
                // Monitors also abort the connection.
                Err(_) if reader.input.is_empty() => return Err(OpeningError::Left),
                filled => filled?,
            },
        }
    }
}

/// Lets the server answer an invalid packet with its own error. Nothing else from the client reaches the server. If too
/// many such requests are in progress, or the server does not answer, the proxy writes the error. `has_header`: a header of
/// the PROXY protocol came before the packet.
pub async fn refuse_packet<T>(
    shared: &Shared,
    client: &mut Peer,
    why: InvalidPacket,
    sent: Vec<Bytes>,
    has_header: bool,
) -> Result<T, Refused> {
    if why == InvalidPacket::ProxyHeader {
        let text = match has_header {
            true => ErrorText::new("08P01", "the connection has a second PROXY protocol header")
                .hint("Two load balancers in a row announce the client, and the proxy accepts the header of the nearer one only. Let that one accept the header of the other (accept-proxy in HAProxy), or turn the PROXY protocol off at one of them."),
            false => ErrorText::new("08P01", why.to_string())
                .hint("Add the load balancer's address to the proxy's setting proxy_protocol_from, or turn the PROXY protocol off at the load balancer (send-proxy in HAProxy)."),
        };
        return refuse(client, text).await;
    }
    if sent.is_empty() {
        return refuse(client, ErrorText::new("08P01", why.to_string())).await;
    }
    let answer = async {
        let _turn = shared.wrong_packets.try_acquire().ok()?;
        tokio::time::timeout(SERVER_LIMIT, server_error(shared, sent)).await.ok()?.ok()?
    };
    match answer.await {
        Some(error) => {
            client.writer.output.extend_from_slice(&error);
            client.writer.flush().await?;
            client.writer.close().await?;
            Err(Refused::silently(why.to_string()))
        }
        None => refuse(client, ErrorText::new("08P01", why.to_string())).await,
    }
}

/// The server's whole answer; None if the server accepts the packet or offers encryption, or if the settings require an
/// encrypted connection.
async fn server_error(shared: &Shared, sent: Vec<Bytes>) -> io::Result<Option<BytesMut>> {
    let Some(stream) = upstream::connect_plainly(shared).await? else { return Ok(None) };
    let mut server = Peer::new(stream);
    let last = sent.len().saturating_sub(1);
    for (number, packet) in sent.into_iter().enumerate() {
        server.writer.output.extend_from_slice(&packet);
        server.writer.flush().await?;
        if number < last {
            server.reader.fill().await?;
            if server.reader.input.split().as_ref() != b"N" {
                return Ok(None);
            }
        }
    }
    // The server answers a client of protocol 2 in that protocol, so the proxy forwards the bytes unparsed.
    while !server.reader.ended && server.reader.input.len() < MAX_AUTHENTICATION {
        server.reader.fill().await?;
        if !is_refusal(&server.reader.input) {
            return Ok(None);
        }
    }
    Ok(Some(server.reader.input))
}

/// Returns true if the answer so far is an error, possibly after the answer to a request for encryption or for another
/// version of the protocol.
fn is_refusal(answer: &[u8]) -> bool {
    let answer = answer.strip_prefix(b"N").unwrap_or(answer);
    let error = match Header::from_server(answer) {
        Ok(Some(header)) if header.tag == backend::NEGOTIATE_VERSION => {
            answer.get(header.frame()..).unwrap_or_default()
        }
        _ => answer,
    };
    error.is_empty() || error.starts_with(b"E") || error.starts_with(b"v")
}
