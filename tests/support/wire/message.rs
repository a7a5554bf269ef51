//! Builders for client messages, as plain bytes that tests can join, split and damage.

pub const PROTOCOL_3_0: u32 = 3 << 16;
pub const PROTOCOL_3_2: u32 = (3 << 16) | 2;
const SSL_REQUEST: u32 = (1234 << 16) | 5679;
const GSS_ENC_REQUEST: u32 = (1234 << 16) | 5680;
const CANCEL_REQUEST: u32 = (1234 << 16) | 5678;

/// A bound value; None is NULL.
pub type Value<'a> = Option<&'a [u8]>;

/// Text or binary, for parameters and for results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Binary,
}

pub fn startup(protocol: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = protocol.to_be_bytes().to_vec();
    for (name, value) in parameters {
        put_text(&mut body, name);
        put_text(&mut body, value);
    }
    body.push(0);
    untagged(&body)
}

pub fn ssl_request() -> Vec<u8> {
    untagged(&SSL_REQUEST.to_be_bytes())
}

pub fn gss_enc_request() -> Vec<u8> {
    untagged(&GSS_ENC_REQUEST.to_be_bytes())
}

/// `key_data` is the body of the BackendKeyData message: process id, and secret of any length.
pub fn cancel_request(key_data: &[u8]) -> Vec<u8> {
    untagged(&[&CANCEL_REQUEST.to_be_bytes(), key_data].concat())
}

pub fn query(sql: &str) -> Vec<u8> {
    tagged(b'Q', &text(sql))
}

pub fn parse(name: &str, sql: &str, types: &[u32]) -> Vec<u8> {
    let mut body = [text(name), text(sql)].concat();
    put_count(&mut body, types.len());
    types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
    tagged(b'P', &body)
}

/// `parameters` is the format of all parameters, and `results` of all result columns.
pub fn bind(portal: &str, statement: &str, parameters: Format, values: &[Value], results: Format) -> Vec<u8> {
    let mut body = [text(portal), text(statement)].concat();
    put_format(&mut body, parameters);
    put_count(&mut body, values.len());
    for value in values {
        match value {
            None => body.extend((-1i32).to_be_bytes()),
            Some(bytes) => {
                body.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
                body.extend(*bytes);
            }
        }
    }
    put_format(&mut body, results);
    tagged(b'B', &body)
}

pub fn bind_text(portal: &str, statement: &str, values: &[Value]) -> Vec<u8> {
    bind(portal, statement, Format::Text, values, Format::Text)
}

pub fn bind_binary(portal: &str, statement: &str, values: &[Value]) -> Vec<u8> {
    bind(portal, statement, Format::Binary, values, Format::Binary)
}

pub fn describe_statement(name: &str) -> Vec<u8> {
    tagged(b'D', &[b"S", text(name).as_slice()].concat())
}

pub fn describe_portal(name: &str) -> Vec<u8> {
    tagged(b'D', &[b"P", text(name).as_slice()].concat())
}

/// `limit` is the number of rows after which the portal is suspended; 0 means no limit.
pub fn execute(portal: &str, limit: u32) -> Vec<u8> {
    tagged(b'E', &[text(portal).as_slice(), &limit.to_be_bytes()].concat())
}

pub fn close_statement(name: &str) -> Vec<u8> {
    tagged(b'C', &[b"S", text(name).as_slice()].concat())
}

pub fn close_portal(name: &str) -> Vec<u8> {
    tagged(b'C', &[b"P", text(name).as_slice()].concat())
}

/// Parse, Bind and Execute of an unnamed statement, without a Sync.
pub fn unnamed(sql: &str, values: &[Value]) -> Vec<u8> {
    [parse("", sql, &[]), bind_text("", "", values), execute("", 0)].concat()
}

pub fn flush() -> Vec<u8> {
    tagged(b'H', b"")
}

pub fn sync() -> Vec<u8> {
    tagged(b'S', b"")
}

pub fn copy_data(data: &[u8]) -> Vec<u8> {
    tagged(b'd', data)
}

pub fn copy_done() -> Vec<u8> {
    tagged(b'c', b"")
}

pub fn copy_fail(reason: &str) -> Vec<u8> {
    tagged(b'f', &text(reason))
}

/// A fastpath call with binary arguments and a binary result.
pub fn function_call(oid: u32, arguments: &[Value]) -> Vec<u8> {
    let mut body = oid.to_be_bytes().to_vec();
    put_format(&mut body, Format::Binary);
    put_count(&mut body, arguments.len());
    for argument in arguments {
        let bytes = argument.unwrap_or_default();
        let length = argument.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap());
        body.extend(length.to_be_bytes());
        body.extend(bytes);
    }
    body.extend(1u16.to_be_bytes());
    tagged(b'F', &body)
}

pub fn password(password: &str) -> Vec<u8> {
    tagged(b'p', &text(password))
}

pub fn sasl_initial_response(mechanism: &str, response: &[u8]) -> Vec<u8> {
    let length = u32::try_from(response.len()).unwrap().to_be_bytes();
    tagged(b'p', &[text(mechanism).as_slice(), &length, response].concat())
}

pub fn sasl_response(response: &[u8]) -> Vec<u8> {
    tagged(b'p', response)
}

pub fn terminate() -> Vec<u8> {
    tagged(b'X', b"")
}

/// Any tag and any body, with the correct length.
pub fn tagged(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag], untagged(body).as_slice()].concat()
}

/// Any tag and any length, correct or not, without a body.
pub fn header(tag: u8, length: i32) -> Vec<u8> {
    [&[tag], length.to_be_bytes().as_slice()].concat()
}

/// A message without a tag, such as the first of a connection.
pub fn untagged(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len() + 4).unwrap().to_be_bytes(), body].concat()
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_text(&mut bytes, text);
    bytes
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    body.extend(text.as_bytes());
    body.push(0);
}

fn put_count(body: &mut Vec<u8>, count: usize) {
    body.extend(u16::try_from(count).unwrap().to_be_bytes());
}

/// One format for all values.
fn put_format(body: &mut Vec<u8>, format: Format) {
    put_count(body, 1);
    put_count(body, usize::from(format == Format::Binary));
}
