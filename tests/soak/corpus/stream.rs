//! One side of a session: messages in their wire format.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;

pub struct Stream(BufReader<TcpStream>);

/// A received message with its header.
pub struct Message(pub Vec<u8>);

impl Message {
    pub fn tag(&self) -> u8 {
        self.0[0]
    }

    pub fn body(&self) -> &[u8] {
        &self.0[5..]
    }

    /// The SQLSTATE of an ErrorResponse.
    pub fn code(&self) -> Option<String> {
        let field = self.body().split(|byte| *byte == 0).find(|field| field.first() == Some(&b'C'))?;
        (self.tag() == b'E').then(|| String::from_utf8_lossy(&field[1..]).into_owned())
    }
}

impl Stream {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::with_capacity(64 << 10, stream)))
    }

    /// Reads the startup packet, which has no tag.
    pub fn startup(&mut self) -> io::Result<Vec<u8>> {
        self.read(0)
    }

    pub fn message(&mut self) -> io::Result<Message> {
        self.read(1).map(Message)
    }

    /// Reads a message with `before` bytes before the length.
    fn read(&mut self, before: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; before + 4];
        self.0.read_exact(&mut bytes)?;
        let length = bytes[before..].first_chunk().map_or(0, |length| u32::from_be_bytes(*length) as usize);
        bytes.resize(before + length, 0);
        self.0.read_exact(&mut bytes[before + 4..])?;
        Ok(bytes)
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }
}
