//! Messages of both sides, and helpers that send several at once.

use super::*;
use fencegate_wire::message::{put_bind, put_execute, put_sync};

pub fn frame(tag: u8, body: &[u8]) -> BytesMut {
    let mut message = BytesMut::new();
    put_frame(&mut message, tag, |out| out.put_slice(body));
    message
}

fn made(put: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut message = BytesMut::new();
    put(&mut message);
    message
}

pub fn parse(name: &str, sql: &str) -> BytesMut {
    made(|out| put_parse(out, name, sql))
}

pub fn bind(portal: &str, statement: &str) -> BytesMut {
    made(|out| put_bind(out, portal, statement))
}

pub fn execute(portal: &str) -> BytesMut {
    made(|out| put_execute(out, portal))
}

pub fn sync() -> BytesMut {
    made(put_sync)
}

pub fn flush() -> BytesMut {
    made(put_flush)
}

pub fn parsed() -> BytesMut {
    frame(backend::PARSE_COMPLETE, b"")
}

pub fn is_bound() -> BytesMut {
    frame(backend::BIND_COMPLETE, b"")
}

pub fn closed() -> BytesMut {
    frame(backend::CLOSE_COMPLETE, b"")
}

pub fn completes(tag: &str) -> BytesMut {
    frame(backend::COMMAND_COMPLETE, format!("{tag}\0").as_bytes())
}

pub fn at_rest(status: Status) -> BytesMut {
    made(|out| put_ready(out, status))
}

/// The server's request for the data of a COPY.
pub fn copies_in() -> BytesMut {
    frame(backend::COPY_IN, &[0; 3])
}

/// The client's view of a failed call, for example a canceled one.
pub fn failed_call() -> BytesMut {
    BytesMut::from(&[cancelled(), ready()].concat()[..])
}

/// The server's response to the statement that replaces a fast-path call.
pub fn answer_to_rejected_call() -> BytesMut {
    BytesMut::from(&[closed(), parsed(), is_bound(), failed_call(), closed(), ready()].concat()[..])
}

pub fn cancelled() -> BytesMut {
    frame(backend::ERROR, b"SERROR\0VERROR\0C57014\0Mcanceled\0\0")
}

/// A row of these columns.
pub fn row_of(columns: &[&str]) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_u16(columns.len() as u16);
    for column in columns {
        body.put_u32(column.len() as u32);
        body.put_slice(column.as_bytes());
    }
    frame(backend::DATA_ROW, &body)
}

/// The reply to a query by the proxy outside a pipeline.
pub fn reply_in_query(columns: &[&str]) -> Vec<u8> {
    [frame(backend::ROW_DESCRIPTION, &[0, 0]), row_of(columns), completes("SELECT 1"), ready()].concat()
}

/// Like [`reply_in_query`], in a pipeline that continues.
pub fn reply_in_pipeline(columns: &[&str]) -> Vec<u8> {
    [parsed(), is_bound(), row_of(columns), completes("SELECT 1"), closed(), closed()].concat()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Prepares a statement, with the server's reply.
pub fn prepare(session: &mut Session<OneSession>, name: &str, sql: &str) {
    sends(session, &[parse(name, sql), sync()].concat());
    replies(session, &[parsed(), ready()].concat());
    session.server.output.clear();
    session.client.output.clear();
}

/// Admits the session under this token.
pub fn admit(session: &Session<OneSession>, resource: &str, token: Token) {
    assert!(session.fence().record_admission(resource, Epoch { generation: 1, token }, 0));
}

/// The requested admissions, for example `scheduler=47`.
pub fn admissions(task: Option<Task>) -> String {
    let Some(Task::Admit(needs)) = task else { return "none".to_owned() };
    let needs = needs.iter().map(|(need, _)| format!("{}={}", need.resource.name, need.token));
    needs.collect::<Vec<_>>().join(", ")
}
