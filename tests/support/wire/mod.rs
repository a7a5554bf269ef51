//! A raw protocol client. It sends any bytes, and returns the server's messages one by one. Blocking, with a time limit
//! on every read, so that a hang fails the test.

pub mod frame;
pub mod message;

pub use frame::{Fields, Frame, error_in, exact, normalised, rows_in};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt};
use postgres_protocol::authentication::{md5_hash, sasl};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// The path of the socket itself: `…/.s.PGSQL.5432`.
    Unix(PathBuf),
}

impl Address {
    /// Host and port in libpq's format.
    pub fn host_and_port(&self) -> (String, String) {
        match self {
            Self::Tcp(address) => (address.ip().to_string(), address.port().to_string()),
            Self::Unix(path) => {
                let port = path.extension().expect("the port ends the name").to_string_lossy().into_owned();
                (path.parent().unwrap().to_string_lossy().into_owned(), port)
            }
        }
    }
}

/// One connection.
pub struct Wire {
    stream: BufReader<Stream>,
}

impl Wire {
    /// Connects without sending anything.
    pub fn connect(address: &Address) -> io::Result<Self> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(READ_TIMEOUT))?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(READ_TIMEOUT))?;
                Stream::Unix(stream)
            }
        };
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Like [`Self::connect`], over TCP from another address of this machine, such as 127.0.0.2, so that the proxy sees
    /// another client.
    pub fn connect_from(source: Ipv4Addr, address: &Address) -> io::Result<Self> {
        let Address::Tcp(SocketAddr::V4(address)) = address else { panic!("not an address of IPv4") };
        let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        bind(stream.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source, 0)))?;
        connect(stream.as_raw_fd(), &SockaddrIn::from(*address))?;
        let stream = TcpStream::from(stream);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(Stream::Tcp(stream)) })
    }

    /// The client's address as the server sees it.
    pub fn local_address(&self) -> String {
        match self.stream.get_ref() {
            Stream::Tcp(stream) => stream.local_addr().unwrap().to_string(),
            Stream::Unix(_) => String::new(),
        }
    }

    /// A session that is ready for its first query. Fails the test if the server rejects the login.
    pub fn login(address: &Address, user: &str, database: &str) -> Self {
        let mut wire = Self::connect(address).expect("the server accepts connections");
        let frames = wire.start(&[("user", user), ("database", database)], "");
        assert_eq!(error_in(&frames), None, "login as {user} to {database}");
        wire
    }

    /// Sends the startup message, answers authentication requests, and returns all messages up to ReadyForQuery, or to
    /// the end of the connection if the server rejects the login.
    pub fn start(&mut self, parameters: &[(&str, &str)], password: &str) -> Vec<Frame> {
        let user = parameters.iter().find(|(name, _)| *name == "user").map_or("", |(_, user)| user);
        self.send(&message::startup(message::PROTOCOL_3_0, parameters));
        self.authenticate(user, password)
    }

    /// [`Wire::start`] without the startup message.
    pub fn authenticate(&mut self, user: &str, password: &str) -> Vec<Frame> {
        let mut scram = None;
        let mut frames = Vec::new();
        while let Some(frame) = self.frame() {
            if frame.tag == b'R' {
                self.answer(&frame.body, user, password, &mut scram);
            }
            let ready = frame.tag == b'Z';
            frames.push(frame);
            if ready {
                break;
            }
        }
        frames
    }

    /// Ignores the end of the connection: the server's messages show why it closed.
    pub fn send(&mut self, bytes: &[u8]) {
        match self.stream.get_mut().write_all(bytes) {
            Err(error) if !is_end(&error) => panic!("send: {error}"),
            _ => {}
        }
    }

    /// Sends as much as the other side accepts immediately. None if it accepts nothing.
    pub fn try_send(&mut self, bytes: &[u8]) -> Option<usize> {
        let stream = self.stream.get_mut();
        stream.set_nonblocking(true);
        let sent = stream.write(bytes);
        stream.set_nonblocking(false);
        match sent {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            sent => Some(sent.expect("the connection is open")),
        }
    }

    /// True if the connection is open and has no unread data.
    pub fn is_silent(&self) -> bool {
        let mut stream = self.stream.get_ref();
        stream.set_nonblocking(true);
        let read = stream.read(&mut [0]);
        stream.set_nonblocking(false);
        self.stream.buffer().is_empty() && read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Sends the pieces one by one from another thread while `read` runs, so that neither waits for the other.
    pub fn send_while<T>(&mut self, pieces: &[&[u8]], read: impl FnOnce(&mut Self) -> T) -> T {
        let mut sender = self.stream.get_ref().another().expect("a second handle of the socket");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for piece in pieces {
                    match sender.write_all(piece) {
                        Err(error) if is_end(&error) => break,
                        result => result.expect("send"),
                    }
                }
            });
            read(self)
        })
    }

    /// Shuts down the sending direction.
    pub fn finish_sending(&mut self) {
        match self.stream.get_mut() {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
        .expect("shutdown");
    }

    /// Resets the connection: the other side reads an error instead of the end.
    pub fn reset(self) {
        let Stream::Tcp(stream) = self.stream.into_inner() else { panic!("a Unix socket is not reset") };
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&stream, sockopt::Linger, &at_once).unwrap();
    }

    /// The next message; None at the end of the connection. A truncated message fails the test.
    pub fn frame(&mut self) -> Option<Frame> {
        let (tag, length) = self.header()?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap_or_else(|error| panic!("body of '{}': {error}", tag as char));
        Some(Frame { tag, body })
    }

    /// Like [`Wire::frame`], for bodies too large to keep: returns the tag and the length of the body.
    pub fn skip_frame(&mut self) -> Option<(u8, usize)> {
        let (tag, length) = self.header()?;
        let mut body = (&mut self.stream).take(length as u64);
        let skipped = io::copy(&mut body, &mut io::sink()).expect("the body of a message");
        assert_eq!(skipped, length as u64, "a message is cut short");
        Some((tag, length))
    }

    pub fn byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        match self.stream.read_exact(&mut byte) {
            Ok(()) => Some(byte[0]),
            Err(error) if is_end(&error) => None,
            Err(error) => panic!("read: {error}"),
        }
    }

    /// All messages up to and including the next ReadyForQuery, or to the end of the connection.
    pub fn read_until_ready(&mut self) -> Vec<Frame> {
        self.read_until(b'Z')
    }

    /// All messages up to and including the next one with this tag, or to the end of the connection.
    pub fn read_until(&mut self, tag: u8) -> Vec<Frame> {
        self.read_until_any(&[tag])
    }

    /// Like [`Wire::read_until`], for any of these tags.
    pub fn read_until_any(&mut self, tags: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame() {
            let last = tags.contains(&frame.tag);
            frames.push(frame);
            if last {
                break;
            }
        }
        frames
    }

    /// All messages to the end of the connection.
    pub fn read_to_end(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.frame()).collect()
    }

    /// All bytes to the end of the connection, for replies that are not in message format.
    pub fn bytes_to_end(&mut self) -> Vec<u8> {
        std::iter::from_fn(|| self.byte()).collect()
    }

    /// Sends bytes that end with a Query or a Sync, and reads the whole reply.
    pub fn exchange(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.send(bytes);
        self.read_until_ready()
    }

    pub fn query(&mut self, sql: &str) -> Vec<Frame> {
        self.exchange(&message::query(sql))
    }

    /// Like [`Wire::query`], for text that may not be UTF-8.
    pub fn query_bytes(&mut self, sql: &[u8]) -> Vec<Frame> {
        self.exchange(&message::tagged(b'Q', &[sql, b"\0"].concat()))
    }

    /// The rows of a simple query, or its error.
    pub fn rows(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Fields> {
        let frames = self.query(sql);
        error_in(&frames).map_or_else(|| Ok(rows_in(&frames)), Err)
    }

    fn header(&mut self) -> Option<(u8, usize)> {
        let tag = self.byte()?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).expect("the length of a message");
        let length = u32::from_be_bytes(length) as usize;
        Some((tag, length.checked_sub(4).expect("a length counts itself")))
    }

    fn answer(&mut self, request: &[u8], user: &str, password: &str, scram: &mut Option<sasl::ScramSha256>) {
        const CLEARTEXT: u32 = 3;
        const MD5: u32 = 5;
        const SASL: u32 = 10;
        const SASL_CONTINUE: u32 = 11;
        let (kind, data) = request.split_first_chunk().expect("a kind of authentication");
        match u32::from_be_bytes(*kind) {
            CLEARTEXT => self.send(&message::password(password)),
            MD5 => {
                let salt = data.try_into().expect("a salt has four bytes");
                self.send(&message::password(&md5_hash(user.as_bytes(), password.as_bytes(), salt)));
            }
            SASL => {
                let exchange = sasl::ScramSha256::new(password.as_bytes(), sasl::ChannelBinding::unsupported());
                self.send(&message::sasl_initial_response(sasl::SCRAM_SHA_256, exchange.message()));
                *scram = Some(exchange);
            }
            SASL_CONTINUE => {
                let exchange = scram.as_mut().expect("SASLContinue comes after SASL");
                exchange.update(data).expect("the server's first SCRAM message");
                self.send(&message::sasl_response(exchange.message()));
            }
            // Ok or SASLFinal, which need no reply.
            _ => {}
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_nonblocking(&self, nonblocking: bool) {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
        .expect("set_nonblocking");
    }

    fn another(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).read(buffer),
            Stream::Unix(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A peer that closes a socket with unread bytes resets the connection, which counts as its end.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}
