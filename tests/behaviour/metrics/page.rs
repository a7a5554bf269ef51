//! An HTTP client of the pages.

use crate::support::DEADLINE;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

#[derive(Debug)]
pub struct Page {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request and reads until the connection closes.
pub fn ask(address: SocketAddr, method: &str, path: &str) -> Page {
    let answer =
        send(address, format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head}"));
    Page { status, head: head.to_lowercase(), body: body.to_owned() }
}

pub fn get(address: SocketAddr, path: &str) -> Page {
    ask(address, "GET", path)
}

/// The response until the connection closes or is reset.
pub fn send(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // The server may refuse the request before all of it has been sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    // Retries if a signal interrupts it, such as SIGCHLD from another test's program.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// One line of a metrics page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// All samples of a page. In these tests, label values contain no quotes or commas.
pub fn samples(text: &str) -> Vec<Sample> {
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let label = |label: &str| {
            let (name, value) = label.split_once('=').expect("a label");
            (name.to_owned(), value.trim_matches('"').to_owned())
        };
        Sample { name: name.to_owned(), labels: labels.map(label).collect(), value: value.parse().unwrap() }
    };
    text.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// Sum of the samples with this name and these labels.
pub fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let matches = |sample: &&Sample| {
        sample.name == name && labels.iter().all(|(label, value)| sample.label(label) == Some(value))
    };
    samples.iter().filter(matches).map(|sample| sample.value).sum()
}
