//! A server that speaks PostgreSQL's protocol but is another engine. The test answers each query.

use super::guardian::Port;
use super::message::{ssl_request, tagged};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// An answer to a query.
pub enum Answer {
    /// One row with one column of this name.
    Value(&'static str, String),
    /// SQLSTATE and message.
    Error(&'static str, &'static str),
    /// No row.
    Nothing,
}

type Answers = dyn Fn(&str) -> Answer + Send + Sync;

pub struct StubEngine {
    port: Port,
}

impl StubEngine {
    pub fn start(answers: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let port = Port::claim();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
        let answers: Arc<Answers> = Arc::new(answers);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, answers) = (client.unwrap(), answers.clone());
                // An error means that the client has disconnected.
                thread::spawn(move || serve(client, &*answers));
            }
        });
        Self { port }
    }

    /// The URL without user and database.
    pub fn url(&self) -> String {
        format!("postgres://127.0.0.1:{}", self.port.number())
    }

    pub fn control_url(&self) -> String {
        format!("postgres://root@127.0.0.1:{}/app", self.port.number())
    }
}

fn serve(mut client: TcpStream, answers: &Answers) -> io::Result<()> {
    while read_body(&mut client)? == ssl_request()[4..] {
        client.write_all(b"N")?;
    }
    let mut greeting = tagged(b'R', &[0; 4]);
    for setting in ["server_version\x0013.0.0\0", "client_encoding\0UTF8\0", "standard_conforming_strings\0on\0"] {
        greeting.extend(tagged(b'S', setting.as_bytes()));
    }
    greeting.extend(tagged(b'K', &[0, 0, 0, 42, 1, 2, 3, 4]));
    greeting.extend(tagged(b'Z', b"I"));
    client.write_all(&greeting)?;
    loop {
        let mut tag = [0];
        client.read_exact(&mut tag)?;
        let body = read_body(&mut client)?;
        if tag == *b"Q" {
            let answer = answers(&String::from_utf8_lossy(&body));
            client.write_all(&[encode(answer), tagged(b'Z', b"I")].concat())?;
        }
    }
}

fn encode(answer: Answer) -> Vec<u8> {
    match answer {
        Answer::Nothing => tagged(b'C', b"SELECT 0\0"),
        Answer::Error(code, message) => tagged(b'E', format!("SERROR\0VERROR\0C{code}\0M{message}\0\0").as_bytes()),
        Answer::Value(name, value) => {
            let mut description = vec![0, 1];
            description.extend(name.as_bytes());
            // Table, column, the type text, its length, its modifier and the format.
            description.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 25, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
            let mut row = vec![0, 1];
            row.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            row.extend(value.as_bytes());
            [tagged(b'T', &description), tagged(b'D', &row), tagged(b'C', b"SELECT 1\0")].concat()
        }
    }
}

fn read_body(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut body)?;
    Ok(body)
}
