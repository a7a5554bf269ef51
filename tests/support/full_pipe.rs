//! A named pipe that is full and has no reader.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// O_NONBLOCK on Linux.
const NON_BLOCKING: i32 = 0o4000;

/// Open for reading, so that a write to the full pipe blocks.
pub struct FullPipe {
    pub path: String,
    pipe: File,
    /// Number of bytes that fill the pipe.
    filling: usize,
}

impl FullPipe {
    pub fn make(path: &Path) -> Self {
        super::programs::run(std::process::Command::new("mkfifo").arg(path));
        let mut pipe = OpenOptions::new().read(true).write(true).custom_flags(NON_BLOCKING).open(path).unwrap();
        let mut filling = 0;
        // Small writes: a write of more than a page may not fit although a smaller one does.
        loop {
            match pipe.write(b"x") {
                Ok(length) => filling += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        Self { path: path.display().to_string(), pipe, filling }
    }

    /// Starts to read the pipe.
    pub fn read(self) -> PipeReader {
        let mut pipe = File::open(&self.path).unwrap();
        drop(self.pipe);
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let its = bytes.clone();
        let reading = thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                match pipe.read(&mut buffer).unwrap() {
                    0 => return,
                    length => its.lock().unwrap().extend_from_slice(&buffer[..length]),
                }
            }
        });
        PipeReader { bytes, reading, filling: self.filling }
    }
}

/// A thread that reads a pipe.
pub struct PipeReader {
    bytes: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
    /// Number of bytes that were in the pipe before.
    filling: usize,
}

impl PipeReader {
    /// Everything read so far, except these bytes.
    pub fn so_far(&self) -> String {
        let bytes = self.bytes.lock().unwrap();
        String::from_utf8_lossy(bytes.get(self.filling..).unwrap_or_default()).into_owned()
    }

    /// Like [`Self::so_far`], after all writers have closed the pipe.
    pub fn end(self) -> String {
        let Self { bytes, reading, filling } = self;
        reading.join().unwrap();
        String::from_utf8_lossy(&bytes.lock().unwrap()[filling..]).into_owned()
    }
}
