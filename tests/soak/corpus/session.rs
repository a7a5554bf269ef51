//! A session of psql on its way to the server. Each query first runs in a transaction that is rolled back, and is
//! compared with its verdict. Then it runs as psql sent it.

use crate::corpus::stream::{Message, Stream};
use crate::corpus::trial::{self, Finding};
use crate::support::message::query;
use fencegate_statement::{
    Encoding, Lexing, PreparedEffect, Script, ServerEncoding, Statement, TransactionEffect, Unreadable, analyze,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

/// A query string of the corpus.
pub struct Query {
    pub text: Vec<u8>,
    pub lexing: Lexing,
    pub read: Result<Script, Unreadable>,
}

/// The results of all sessions.
#[derive(Default)]
pub struct Record {
    pub queries: Vec<Query>,
    /// Number of trials by result.
    pub trials: BTreeMap<&'static str, usize>,
    /// Writes that the verdict missed.
    pub missed: Vec<String>,
    /// Texts that the server can parse but our grammar cannot.
    pub unknown: Vec<String>,
}

pub struct Session<'r> {
    client: Stream,
    pub server: Stream,
    record: &'r Mutex<Record>,
    file: String,
    lexing: Lexing,
    /// Status from the last ReadyForQuery.
    pub status: u8,
    prepared: HashMap<String, Arc<Statement>>,
    /// The client's data for each COPY of the current query, including its end.
    copies: VecDeque<Vec<u8>>,
}

impl<'r> Session<'r> {
    pub fn new(client: TcpStream, server: TcpStream, record: &'r Mutex<Record>) -> io::Result<Self> {
        Ok(Self {
            client: Stream::new(client)?,
            server: Stream::new(server)?,
            record,
            file: String::new(),
            lexing: Lexing {
                standard_conforming_strings: true,
                encoding: Encoding::Utf8,
                server: ServerEncoding::Utf8,
                release: Lexing::NEWEST,
            },
            status: b'I',
            prepared: HashMap::new(),
            copies: VecDeque::new(),
        })
    }

    /// Returns when either side has closed its connection.
    pub fn run(mut self) {
        let startup = self.client.startup().unwrap();
        let parameters: Vec<_> = startup.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let name = parameters.iter().position(|parameter| parameter == "application_name").map(|name| name + 1);
        self.file = name.map(|name| parameters[name].to_string()).unwrap_or_default();
        self.server.send(&startup).unwrap();
        let ended = self.pass_reply(true).and_then(|_| {
            loop {
                self.client_message()?;
            }
        });
        let ended: io::Result<()> = ended;
        let error = ended.unwrap_err();
        assert!(error.kind() != io::ErrorKind::InvalidData, "{}: {error}", self.file);
    }

    fn client_message(&mut self) -> io::Result<()> {
        let message = self.client.message()?;
        match message.tag() {
            b'Q' => self.query(&message),
            tag => {
                self.server.send(&message.0)?;
                if matches!(tag, b'S' | b'F') { self.pass_reply(true).map(drop) } else { Ok(()) }
            }
        }
    }

    fn query(&mut self, message: &Message) -> io::Result<()> {
        let text = message.body().strip_suffix(b"\0").unwrap();
        let read = analyze(text, self.lexing);
        self.copies.clear();
        let finding = trial::run(self, message, &read)?;
        self.note_finding(finding, text);
        let lexing = self.lexing;
        let mut again = std::mem::take(&mut self.copies);
        self.server.send(&message.0)?;
        let error = self.reply(true, &mut again)?;
        if let (Ok(script), None) = (&read, &error) {
            script.statements.iter().for_each(|statement| self.remember(statement));
        }
        let query = Query { text: text.to_vec(), lexing, read };
        self.record.lock().unwrap().queries.push(query);
        Ok(())
    }

    fn note_finding(&self, finding: Finding, text: &[u8]) {
        let mut record = self.record.lock().unwrap();
        *record.trials.entry(finding.name()).or_default() += 1;
        let shown = String::from_utf8_lossy(text);
        match finding {
            Finding::Missed(what) => record.missed.push(format!("{}: {what}\n    {shown}", self.file)),
            Finding::Unknown => record.unknown.push(format!("{}: {shown}", self.file)),
            Finding::LeftOut(_) | Finding::Explained(_) => {}
        }
    }

    fn remember(&mut self, statement: &Statement) {
        match &statement.prepared {
            PreparedEffect::Prepare { name, statement } => drop(self.prepared.insert(name.clone(), statement.clone())),
            PreparedEffect::Deallocate { name } => drop(self.prepared.remove(name)),
            PreparedEffect::DeallocateAll => self.prepared.clear(),
            _ => {}
        }
    }

    /// The effects of the statement. EXECUTE has the effects of the prepared statement.
    pub fn resolve(&self, statement: &Statement) -> Statement {
        match &statement.prepared {
            PreparedEffect::Execute { name, .. } => statement.executing(self.prepared.get(name).map(|known| &**known)),
            _ => statement.clone(),
        }
    }

    pub fn is_in_transaction(&self) -> bool {
        self.status != b'I'
    }

    /// Runs SQL of the test. Returns its rows as text, or the SQLSTATE of its error.
    pub fn ask(&mut self, sql: &str) -> io::Result<Result<Vec<Vec<Option<String>>>, String>> {
        self.server.send(&query(sql))?;
        self.answer()
    }

    /// Reads the reply up to ReadyForQuery.
    pub fn answer(&mut self) -> io::Result<Result<Vec<Vec<Option<String>>>, String>> {
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            let message = self.server.message()?;
            self.note(&message);
            match message.tag() {
                b'D' => rows.push(columns(message.body())),
                b'E' => error = error.or(message.code()),
                b'Z' => return Ok(error.map_or(Ok(rows), Err)),
                _ => {}
            }
        }
    }

    /// Reads the reply to a query in a trial, and does not forward it to the client.
    pub fn tried(&mut self) -> io::Result<Option<String>> {
        self.reply(false, &mut VecDeque::new())
    }

    fn pass_reply(&mut self, pass: bool) -> io::Result<Option<String>> {
        self.reply(pass, &mut VecDeque::new())
    }

    /// Reads a reply to its end, and sends the data for COPY from `again` or the client. Returns the first error.
    fn reply(&mut self, pass: bool, again: &mut VecDeque<Vec<u8>>) -> io::Result<Option<String>> {
        let mut error = None;
        loop {
            let message = self.server.message()?;
            self.note(&message);
            match message.tag() {
                b'G' => {
                    let data = match again.pop_front() {
                        Some(data) => data,
                        None => self.copy_data(&message)?,
                    };
                    self.server.send(&data)?;
                    continue;
                }
                b'E' => error = error.or(message.code()),
                _ => {}
            }
            if pass {
                self.client.send(&message.0)?;
            }
            if message.tag() == b'Z' {
                return Ok(error);
            }
        }
    }

    fn copy_data(&mut self, invitation: &Message) -> io::Result<Vec<u8>> {
        self.client.send(&invitation.0)?;
        let mut data = Vec::new();
        loop {
            let message = self.client.message()?;
            data.extend_from_slice(&message.0);
            if matches!(message.tag(), b'c' | b'f') {
                self.copies.push_back(data.clone());
                return Ok(data);
            }
        }
    }

    fn note(&mut self, message: &Message) {
        let text = || message.body().split(|byte| *byte == 0).map(String::from_utf8_lossy).collect::<Vec<_>>();
        match message.tag() {
            b'Z' => self.status = message.body()[0],
            b'S' => match text().as_slice() {
                [name, value, ..] if name == "client_encoding" => self.lexing.encoding = Encoding::from_name(value),
                [name, value, ..] if name == "standard_conforming_strings" => {
                    self.lexing.standard_conforming_strings = value == "on";
                }
                _ => {}
            },
            _ => {}
        }
    }
}

fn columns(row: &[u8]) -> Vec<Option<String>> {
    crate::support::Frame { tag: b'D', body: row.to_vec() }.columns()
}

/// Returns true if the statement begins or ends transactions.
pub fn controls_transactions(statement: &Statement) -> bool {
    statement.transaction != TransactionEffect::None
}
