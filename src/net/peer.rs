//! One end of a session: a socket, its input and its output.
//!
//! Must never grow beyond its bounds: callers check the length of the output before they add to it.

use super::stream::{ReadHalf, Stream, WriteHalf};
use crate::config::Origin;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use fencegate_postgres::tls::Secured;
use fencegate_wire::frame::{Header, InvalidLength};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

/// Size of a read when little data arrives: a size that the allocator provides cheaply.
const READ_LITTLE: usize = 1024;
/// Size of a read after one that has filled its buffer.
const READ_MUCH: usize = 32 * 1024;

/// A socket with its buffers.
pub struct Peer {
    pub reader: Reader,
    pub writer: Writer,
    /// None: not encrypted.
    pub secured: Option<Secured>,
    /// Address of the other side.
    pub origin: Origin,
    /// The system user of the process at the other end of a Unix socket.
    pub system_user: Option<u32>,
}

/// The reading half, with its buffered input.
pub struct Reader {
    source: Source,
    /// Input that was read but not handled.
    pub input: BytesMut,
    /// True once the other side will send no more.
    pub ended: bool,
}

/// The writing half, with its pending output.
pub struct Writer {
    sink: Sink,
    /// Output that is not yet written.
    pub output: BytesMut,
}

/// The reading half of a connection.
pub struct Source {
    half: ReadHalf,
    /// Number of bytes to request in the next read.
    at_once: usize,
    /// Number of bytes read.
    pub bytes: u64,
}

/// The writing half of a connection.
pub struct Sink {
    half: WriteHalf,
    /// TLS may still buffer written data.
    unflushed: bool,
    /// True if no more output will follow, but this direction is not yet shut down.
    ending: bool,
    /// True if output was lost.
    has_lost: bool,
    /// Number of bytes written.
    pub bytes: u64,
}

impl Peer {
    /// A peer without input or output.
    pub fn new(stream: Stream) -> Self {
        let (origin, system_user) = (stream.origin(), stream.system_user());
        let secured = match &stream {
            Stream::Tls(_, secured) => Some(secured.clone()),
            Stream::Tcp(_) | Stream::Unix(_) => None,
        };
        let (reader, writer) = stream.split();
        Peer {
            reader: Reader {
                source: Source { half: reader, at_once: READ_LITTLE, bytes: 0 },
                input: BytesMut::new(),
                ended: false,
            },
            writer: Writer {
                sink: Sink { half: writer, unflushed: false, ending: false, has_lost: false, bytes: 0 },
                output: BytesMut::new(),
            },
            secured,
            origin,
            system_user,
        }
    }

    /// Returns true if the other side may be on another machine.
    pub fn is_tcp(&self) -> bool {
        self.origin != Origin::Unix
    }

    /// The bare socket, if it is TCP without TLS. Discards buffered input and output.
    pub fn into_tcp(self) -> Option<TcpStream> {
        self.reader.source.half.unsplit_tcp(self.writer.sink.half)
    }
}

impl Source {
    /// Reads available input, at least one byte; 0 bytes mean the end. An empty buffer uses no memory while waiting.
    ///
    /// # Errors
    /// The socket's errors.
    #[inline]
    pub fn poll_fill(&mut self, context: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        // Most calls.
        if self.half.is_drained() {
            recycle(input);
            return Poll::Pending;
        }
        self.poll_read(context, input)
    }

    fn poll_read(&mut self, context: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        if self.half.poll_readable(context)?.is_pending() {
            recycle(input);
            return Poll::Pending;
        }
        allocate(input);
        let read = match &mut self.half {
            ReadHalf::Relayed(socket) => socket.poll_fill(input, self.at_once)?,
            half => {
                input.reserve(self.at_once);
                // `read_buf` would fill all capacity that a large message once required.
                let mut room = input.limit(self.at_once);
                pin!(half.read_buf(&mut room)).poll(context)?
            }
        };
        let Poll::Ready(read) = read else {
            // With TLS, only a read can detect the end.
            recycle(input);
            return Poll::Pending;
        };
        if read == self.at_once {
            self.at_once = READ_MUCH;
        } else if read < READ_LITTLE {
            self.at_once = READ_LITTLE;
        }
        self.bytes += read as u64;
        Poll::Ready(Ok(read))
    }

    /// Moves both halves to the relay that polls the session.
    ///
    /// # Errors
    /// The system's error.
    pub fn relayed(self, sink: Sink) -> io::Result<(Self, Sink)> {
        let (read, write) = self.half.relayed(sink.half)?;
        Ok((Source { half: read, ..self }, Sink { half: write, ..sink }))
    }

    /// Like [`Self::poll_fill`]. Cancel-safe.
    ///
    /// # Errors
    /// The socket's errors.
    pub async fn fill(&mut self, input: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|context| self.poll_fill(context, input)).await
    }
}

impl Reader {
    /// Reads available input, at least one byte or the end. Cancel-safe.
    ///
    /// # Errors
    /// The socket's errors.
    pub async fn fill(&mut self) -> io::Result<()> {
        self.ended |= self.source.fill(&mut self.input).await? == 0;
        Ok(())
    }

    /// The reading half, its unhandled input, and whether the input has ended.
    pub fn into_parts(self) -> (Source, BytesMut, bool) {
        (self.source, self.input, self.ended)
    }

    /// Takes a complete frame from the server's input, if one has arrived.
    ///
    /// # Errors
    /// An invalid length, or one above `limit` bytes.
    pub fn server_frame(&mut self, limit: usize) -> Result<Option<(u8, Bytes)>, InvalidLength> {
        let Some(header) = Header::from_server(&self.input)? else { return Ok(None) };
        self.take_frame(header, limit)
    }

    /// Takes a complete frame from the client's input, if one has arrived.
    ///
    /// # Errors
    /// An impossible length, or one above `limit` bytes.
    pub fn client_frame(&mut self, limit: usize) -> Result<Option<(u8, Bytes)>, InvalidLength> {
        let Some(header) = Header::from_client(&self.input)? else { return Ok(None) };
        self.take_frame(header, limit)
    }

    fn take_frame(&mut self, header: Header, limit: usize) -> Result<Option<(u8, Bytes)>, InvalidLength> {
        if header.body > limit {
            return Err(InvalidLength { tag: header.tag, length: i32::try_from(header.body + 4).unwrap_or(i32::MAX) });
        }
        if self.input.len() < header.frame() {
            return Ok(None);
        }
        Ok(Some((header.tag, self.input.split_to(header.frame()).freeze())))
    }
}

/// Memory of a buffer that the thread keeps for the next one, in bytes: enough for most transactions.
const SPARE: usize = 4096;

/// Number of buffers that a thread keeps.
const SPARES: usize = 8;

thread_local! {
    /// Empty buffers.
    static SPARE_BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Frees the memory of an empty buffer, because most sessions are idle.
#[inline]
pub fn recycle(buffer: &mut BytesMut) {
    if buffer.is_empty() && buffer.capacity() > 0 {
        keep(std::mem::take(buffer));
    }
}

#[inline(never)]
fn keep(mut buffer: BytesMut) {
    // A buffer that was used a little can be used on.
    if (buffer.capacity() >= SPARE / 2 || buffer.try_reclaim(SPARE)) && buffer.capacity() < 2 * SPARE {
        SPARE_BUFFERS.with_borrow_mut(|spares| {
            if spares.len() < SPARES {
                spares.push(buffer);
            }
        });
    }
}

/// Gives memory to a buffer that has none.
#[inline]
pub fn allocate(buffer: &mut BytesMut) {
    if buffer.capacity() == 0 {
        let spare = SPARE_BUFFERS.with_borrow_mut(Vec::pop);
        *buffer = spare.unwrap_or_else(|| BytesMut::with_capacity(SPARE));
    }
}

impl Sink {
    /// Returns true if [`Self::poll_flush`] has work to do.
    pub fn is_pending(&self, output: &BytesMut) -> bool {
        !output.is_empty() || self.unflushed || self.ending
    }

    /// Writes as much output as the socket accepts, then the output buffered by TLS, then the end of the stream. Ready
    /// when everything is written.
    ///
    /// # Errors
    /// The socket's errors.
    pub fn poll_flush(&mut self, context: &mut Context<'_>, output: &mut BytesMut) -> Poll<io::Result<()>> {
        if self.has_lost {
            output.clear();
        }
        while !output.is_empty() {
            let written = match &mut self.half {
                WriteHalf::Relayed(socket) => ready!(socket.poll_send(output))?,
                half => {
                    self.unflushed = true;
                    ready!(Pin::new(half).poll_write(context, output))?
                }
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            output.advance(written);
            self.bytes += written as u64;
        }
        recycle(output);
        if self.unflushed {
            ready!(Pin::new(&mut self.half).poll_flush(context))?;
            self.unflushed = false;
        }
        if self.ending {
            ready!(Pin::new(&mut self.half).poll_shutdown(context))?;
            self.ending = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Closes the sending half after the output.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// Records that output was lost. No later output may follow: its reader would take it for the lost part. Ends the
    /// stream, because the socket may still work.
    pub fn give_up(&mut self, output: &mut BytesMut) {
        output.clear();
        (self.unflushed, self.ending) = (false, !self.has_lost);
        self.has_lost = true;
    }

    /// Writes all output. Cancel-safe: unwritten data stays in the output.
    ///
    /// # Errors
    /// The socket's errors.
    pub async fn flush(&mut self, output: &mut BytesMut) -> io::Result<()> {
        poll_fn(|context| self.poll_flush(context, output)).await
    }

    /// Writes all output and closes the sending half. Cancel-safe.
    ///
    /// # Errors
    /// The socket's errors.
    pub async fn close(&mut self, output: &mut BytesMut) -> io::Result<()> {
        self.end();
        self.flush(output).await
    }

    /// The socket's writing half alone.
    pub fn into_half(self) -> WriteHalf {
        self.half
    }
}

impl Writer {
    /// Like [`Sink::flush`]. Cancel-safe.
    ///
    /// # Errors
    /// The socket's errors.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.sink.flush(&mut self.output).await
    }

    /// Like [`Sink::close`]. Cancel-safe.
    ///
    /// # Errors
    /// The socket's errors.
    pub async fn close(&mut self) -> io::Result<()> {
        self.sink.close(&mut self.output).await
    }

    /// The writing half and its pending output.
    pub fn into_parts(self) -> (Sink, BytesMut) {
        (self.sink, self.output)
    }
}
