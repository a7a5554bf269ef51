//! Properties of each decoder for any input. Each `check` returns whether the input was valid.

/// Types in a Parse and values in a Bind.
pub mod bind {
    use fencegate_statement::rows::{ColumnValue, Declared, ValueType};
    use fencegate_wire::message::{Bound, bound_values, parameter_types};

    pub fn check(input: &[u8]) -> bool {
        types(input) | values(input)
    }

    fn types(input: &[u8]) -> bool {
        let Some(types) = parameter_types(input) else { return false };
        let written = types.iter().flat_map(|oid| oid.to_be_bytes());
        assert_eq!((types.len() as u16).to_be_bytes().into_iter().chain(written).collect::<Vec<_>>(), input);
        types.into_iter().map(Declared::from_oid).for_each(drop);
        true
    }

    fn values(input: &[u8]) -> bool {
        let Some(values) = bound_values(input) else { return false };
        let count = (values.len() as u16).to_be_bytes();
        let formats = values.iter().flat_map(|value| u16::from(matches!(value, Bound::Binary(_))).to_be_bytes());
        let written = values.iter().flat_map(|value| match value {
            Bound::Null => (-1i32).to_be_bytes().to_vec(),
            Bound::Text(bytes) | Bound::Binary(bytes) => [&(bytes.len() as i32).to_be_bytes(), *bytes].concat(),
        });
        let again: Vec<u8> = count.into_iter().chain(formats).chain(count).chain(written).chain([0, 0]).collect();
        assert_eq!(bound_values(&again), Some(values.clone()));
        assert_eq!(bound_values(&[input, b"\0"].concat()), None);
        values.into_iter().for_each(key);
        true
    }

    /// A bound value has at most one text as a key of each type, and that text denotes the same key.
    fn key(bound: Bound) {
        let value = match bound {
            Bound::Null => None,
            Bound::Text(bytes) => ColumnValue::from_text(bytes),
            Bound::Binary(bytes) => ColumnValue::from_binary(bytes),
        };
        for kind in [ValueType::Integer, ValueType::Text, ValueType::Uuid] {
            let Some(text) = value.as_ref().and_then(|value| value.in_column(kind)) else { continue };
            let again = ColumnValue::Literal { text: text.clone(), kind: Some(kind) };
            assert_eq!(again.in_column(kind), Some(text));
        }
    }
}

/// The value of `lease.fence`: parsed tokens can be formatted again, with the same meaning.
pub mod fence_value {
    use fencegate_fence::value::FenceValue;

    pub fn check(input: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        let Ok(value) = FenceValue::parse(text) else { return false };
        assert_eq!(FenceValue::parse(&format!(" {text}\n")).unwrap(), value);
        let written = match &value {
            FenceValue::Missing => String::new(),
            FenceValue::One(token) => token.to_string(),
            FenceValue::List(list) => {
                let entries: Vec<_> = list.iter().map(|(resource, token)| format!("{resource}={token}")).collect();
                entries.join(",")
            }
        };
        assert_eq!(FenceValue::parse(&written).unwrap(), value);
        match &value {
            FenceValue::Missing => assert_eq!(value.token("scheduler"), None),
            FenceValue::One(token) => assert!(*token > 0 && value.token("scheduler") == Some(*token)),
            FenceValue::List(list) => {
                assert_eq!(list.len(), text.split(',').count());
                assert!(list.iter().all(|(resource, token)| *token > 0 && value.token(resource) == Some(*token)));
                assert_eq!(value.token("no such resource"), None);
            }
        }
        value != FenceValue::Missing
    }
}

/// Frames: header, body, strings.
pub mod frame {
    use bytes::{BufMut, BytesMut};
    use fencegate_wire::frame::{HEADER, Header, InvalidLength, put_frame, split_string};

    pub fn check(input: &[u8]) -> bool {
        strings(input);
        let from_server = Header::from_server(input);
        agrees(input, from_server, |_| i64::from(i32::MAX));
        let from_client = Header::from_client(input);
        agrees(input, from_client, |tag| match tag {
            b'Q' | b'P' | b'B' | b'F' | b'd' => 0x3fff_fffe,
            b'p' => 65_531,
            _ => 10_000,
        });
        if from_client.is_ok() {
            assert_eq!(from_client, from_server);
        }
        all_frames(input)
    }

    /// Reads the length as documented: an i32 that includes itself.
    fn agrees(input: &[u8], header: Result<Option<Header>, InvalidLength>, limit: impl Fn(u8) -> i64) {
        let [tag, length @ ..] = match input.first_chunk::<HEADER>() {
            Some(start) => *start,
            None => return assert_eq!(header, Ok(None)),
        };
        let length = i32::from_be_bytes(length);
        let body = i64::from(length) - 4;
        if body < 0 || body > limit(tag) {
            return assert_eq!(header, Err(InvalidLength { tag, length }));
        }
        let header = header.unwrap().unwrap();
        assert_eq!((header.tag, header.body as i64, header.frame() as i64), (tag, body, i64::from(length) + 1));
        if let Some(frame) = input.get(..header.frame()) {
            let mut output = BytesMut::new();
            put_frame(&mut output, tag, |body| body.put_slice(&frame[HEADER..]));
            assert_eq!(output, frame);
        }
    }

    /// Returns true if the input begins with a complete frame.
    fn all_frames(input: &[u8]) -> bool {
        let (mut rest, mut count) = (input, 0);
        while let Ok(Some(header)) = Header::from_server(rest) {
            let Some((_, after)) = rest.split_at_checked(header.frame()) else { break };
            (rest, count) = (after, count + 1);
        }
        count > 0
    }

    fn strings(input: &[u8]) {
        match split_string(input) {
            None => assert!(!input.contains(&0)),
            Some((string, rest)) => {
                assert!(!string.contains(&0));
                assert_eq!([string, b"\0", rest].concat(), input);
            }
        }
    }
}

/// Bodies of the server messages that the proxy reads: rows, parameters, errors.
pub mod message {
    use bytes::BytesMut;
    use fencegate_wire::error::{ErrorText, Severity, field, fields};
    use fencegate_wire::frame::{HEADER, Header};
    use fencegate_wire::message::{self, Status};

    pub fn check(input: &[u8]) -> bool {
        assert_eq!(Status::read(input).is_some(), [&b"I"[..], b"T", b"E"].contains(&input));
        error_of_our_own(input);
        row(input) | parameter(input) | error(input)
    }

    fn row(body: &[u8]) -> bool {
        let Some(columns) = message::columns(body) else { return false };
        let mut written = (columns.len() as u16).to_be_bytes().to_vec();
        for column in &columns {
            let length = column.as_ref().map_or(-1, |text| text.len() as i32);
            written.extend([&length.to_be_bytes()[..], column.as_deref().unwrap_or_default().as_bytes()].concat());
        }
        assert_eq!(written, body);
        true
    }

    fn parameter(body: &[u8]) -> bool {
        let Some((name, value)) = message::parameter_status(body) else { return false };
        assert!(body.starts_with(&[name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat()));
        true
    }

    fn error(body: &[u8]) -> bool {
        let mut written = Vec::new();
        for (tag, value) in fields(body) {
            written.extend([&[tag], value, b"\0"].concat());
        }
        assert!(body.starts_with(&written));
        for tag in 0..=u8::MAX {
            let first = fields(body).find(|(found, _)| *found == tag).map(|(_, value)| value);
            assert_eq!(field(body, tag), first);
        }
        // The fields end at the terminator, not at damage.
        !written.is_empty() && body.get(written.len()) == Some(&0)
    }

    /// An error of the proxy is one frame with exactly the expected fields, whatever its text.
    fn error_of_our_own(input: &[u8]) {
        let words = String::from_utf8_lossy(input).into_owned();
        let text = ErrorText::new("LF004", words.clone()).detail(words.clone()).hint(words.clone());
        let mut output = BytesMut::new();
        text.put(&mut output, Severity::Fatal);
        let header = Header::from_server(&output).unwrap().unwrap();
        assert_eq!((header.tag, header.frame()), (b'E', output.len()));
        let words = words.replace('\0', "");
        let mut expected = vec![(b'S', "FATAL"), (b'V', "FATAL"), (b'C', "LF004"), (b'M', &words)];
        if !input.is_empty() {
            expected.extend([(b'D', words.as_str()), (b'H', &words)]);
        }
        let found: Vec<_> =
            fields(&output[HEADER..]).map(|(tag, value)| (tag, std::str::from_utf8(value).unwrap())).collect();
        assert_eq!(found, expected);
    }
}

/// A policy file: every fault has a position inside the file.
pub mod policy {
    use fencegate_policy::join;
    use std::path::Path;

    pub fn check(input: &[u8]) -> bool {
        let path = Path::new("policies.yaml");
        let Err(errors) = join([(path.to_owned(), Ok(input.to_vec()))]) else { return true };
        assert!(!errors.is_empty());
        // A lone CR also ends a line in YAML.
        let text = String::from_utf8_lossy(input).replace("\r\n", "\n").replace('\r', "\n");
        let lines: Vec<_> = text.split('\n').collect();
        for error in errors {
            assert_eq!(error.file, path);
            assert!(!error.message.is_empty() && !error.message.contains('\n'), "{error}");
            // The position may be the end of the line or of the file.
            let line = usize::try_from(error.line - 1).ok().and_then(|line| lines.get(line));
            let is_inside = line.is_some_and(|line| (1..=line.chars().count() as u64 + 1).contains(&error.column));
            assert!(is_inside, "{error}");
        }
        false
    }
}

/// Startup packets, compared with a second, independent decoder.
pub mod startup {
    use fencegate_wire::startup::{InvalidPacket, MAX_PACKET, Packet, Replication, Startup, packet_length, read};

    pub fn check(input: &[u8]) -> bool {
        let length = packet_length(input);
        match input.first_chunk() {
            None => assert_eq!(length, Ok(None)),
            Some(start) => match usize::try_from(i32::from_be_bytes(*start)) {
                Ok(expected @ 8..=MAX_PACKET) => assert_eq!(length, Ok(Some(expected))),
                _ => assert_eq!(length, Err(InvalidPacket::Length)),
            },
        }
        let packet = match length {
            Ok(Some(length)) => &input[..length.min(input.len())],
            _ => input,
        };
        let found = read(packet.to_vec().into());
        let Some((code, body)) = packet.get(4..).and_then(|rest| rest.split_first_chunk()) else {
            assert_eq!(found, Err(InvalidPacket::Length));
            return false;
        };
        match u32::from_be_bytes(*code) {
            80_877_102 => assert_eq!(found, Ok(Packet::CancelRequest(packet.to_vec().into()))),
            80_877_103 => assert_eq!(found, Ok(Packet::SslRequest)),
            80_877_104 => assert_eq!(found, Ok(Packet::GssEncryptionRequest)),
            version if version >> 16 == 3 => starts_session(packet, body, &found),
            version => {
                assert_eq!(found, Err(InvalidPacket::Version((version >> 16) as u16, (version & 0xffff) as u16)));
            }
        }
        found.is_ok()
    }

    fn starts_session(packet: &[u8], body: &[u8], found: &Result<Packet, InvalidPacket>) {
        let Some(parameters) = pairs(body) else {
            // The decoder may find either fault first.
            return assert!(matches!(found, Err(InvalidPacket::Layout | InvalidPacket::Encoding)), "{found:?}");
        };
        let Some(parameters) = parameters.into_iter().map(as_text).collect::<Option<Vec<_>>>() else {
            return assert_eq!(*found, Err(InvalidPacket::Encoding));
        };
        let is_repeated = |wanted: &&str| parameters.iter().filter(|(name, _)| name == wanted).count() > 1;
        if let Some(name) = ["user", "database", "replication"].into_iter().find(is_repeated) {
            return assert_eq!(*found, Err(InvalidPacket::Repeated(name)));
        }
        let last = |name: &str| parameters.iter().filter(|(key, _)| *key == name).map(|(_, value)| *value).next_back();
        let Some(user) = last("user").filter(|user| !user.is_empty()) else {
            return assert_eq!(*found, Err(InvalidPacket::User));
        };
        let database = last("database").filter(|name| !name.is_empty()).unwrap_or(user);
        let ends_in_a_character = |name: &str| name.len() > 63 && !name.is_char_boundary(63);
        if ends_in_a_character(user) || ends_in_a_character(database) {
            return assert_eq!(*found, Err(InvalidPacket::Name));
        }
        let [user, database] = [user, database].map(|name| &name[..name.len().min(63)]);
        let Ok(Packet::Startup(startup)) = found else { panic!("{found:?}") };
        assert_eq!(startup.packet, packet);
        assert_eq!(startup.user(), user);
        assert_eq!(startup.database(), database);
        for (name, _) in &parameters {
            assert_eq!(startup.parameter(name), last(name), "{name}");
        }
        in_another_database(startup, &parameters);
    }

    /// Returns the names and values. Each string ends with a NUL, and one more NUL ends the list.
    fn pairs(body: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
        let strings: Vec<&[u8]> = body.split(|byte| *byte == 0).collect();
        let (parameters, end) = strings.split_at(strings.len().checked_sub(2)?);
        let whole = end.iter().all(|string| string.is_empty()) && parameters.len() % 2 == 0;
        let pairs: Vec<_> = parameters.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        (whole && pairs.iter().all(|(name, _)| !name.is_empty())).then_some(pairs)
    }

    fn as_text<'a>((name, value): (&'a [u8], &'a [u8])) -> Option<(&'a str, &'a str)> {
        Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
    }

    fn in_another_database(startup: &Startup, parameters: &[(&str, &str)]) {
        let packet = startup.for_database("another");
        assert_eq!(packet[..4], (packet.len() as u32).to_be_bytes());
        assert_eq!(packet[4..8], startup.packet[4..8]);
        let Ok(Packet::Startup(other)) = read(packet) else { panic!("not a startup packet") };
        assert_eq!(
            (other.user(), other.database(), other.replication()),
            (startup.user(), "another", Replication::None)
        );
        for (name, _) in parameters.iter().filter(|(name, _)| !["user", "database", "replication"].contains(name)) {
            assert_eq!(other.parameter(name), startup.parameter(name), "{name}");
        }
    }
}

/// Texts of statements: the statements are in order, lie within the text, and hide no later one.
pub mod statement {
    use fencegate_statement::{Encoding, Lexing, Operation, Script, ServerEncoding, Unreadable, analyze, analyze_rows};
    use std::collections::HashSet;

    const ENCODINGS: [Encoding; 3] = [Encoding::Utf8, Encoding::AsciiSafe, Encoding::AsciiUnsafe];
    const SETTINGS: [(bool, u8); 3] = [(true, Lexing::NEWEST), (false, Lexing::NEWEST), (true, 15)];

    pub fn check(text: &[u8]) -> bool {
        let mut readable = false;
        for encoding in ENCODINGS {
            for (standard_conforming_strings, release) in SETTINGS {
                let lexing = Lexing { standard_conforming_strings, encoding, server: ServerEncoding::Utf8, release };
                let Ok(script) = analyze(text, lexing) else { continue };
                assert!(!text.contains(&0));
                assert!(text.is_ascii() || encoding != Encoding::AsciiUnsafe);
                in_order(text, &script);
                after_white_space(text, lexing, &script);
                followed_by_a_write(text, lexing);
                with_rows(text, lexing, &script);
                readable = true;
            }
        }
        readable
    }

    fn in_order(text: &[u8], script: &Script) {
        let mut end = 0;
        for statement in &script.statements {
            assert!(end <= statement.range.start && statement.range.start <= statement.range.end);
            end = statement.range.end;
        }
        assert!(end <= text.len());
    }

    /// Leading white space shifts the ranges and changes nothing else.
    fn after_white_space(text: &[u8], lexing: Lexing, script: &Script) {
        let moved = analyze(&[b" \n ", text].concat(), lexing).unwrap();
        assert_eq!(moved.statements.len(), script.statements.len());
        for (moved, statement) in moved.statements.iter().zip(&script.statements) {
            assert_eq!(moved.range, statement.range.start + 3..statement.range.end + 3);
            assert_eq!((&moved.writes, &moved.functions), (&statement.writes, &statement.functions));
        }
    }

    /// A readable text ends outside of literals and comments: text appended to it is a separate statement.
    fn followed_by_a_write(text: &[u8], lexing: Lexing) {
        match analyze(&[text, b"\n; DELETE FROM fenced"].concat(), lexing) {
            Ok(script) => {
                let writes = &script.statements.last().unwrap().writes;
                let fenced = |write: &&fencegate_statement::Write| write.relation.name == "fenced";
                assert_eq!(writes.iter().find(fenced).map(|write| write.operation), Some(Operation::Delete));
            }
            // One more statement may exceed the limits of the parsers.
            Err(why) => assert_eq!(why, Unreadable::TooComplex),
        }
    }

    /// An analysis with rows finds the same writes.
    fn with_rows(text: &[u8], lexing: Lexing, script: &Script) {
        let found = analyze_rows(text, lexing).unwrap();
        let writes = |script: &Script| -> Vec<HashSet<_>> {
            let of = |write: &fencegate_statement::Write| (write.relation.clone(), write.operation);
            script.statements.iter().map(|statement| statement.writes.iter().map(of).collect()).collect()
        };
        assert_eq!(writes(&found), writes(script));
    }
}

/// Everything that the tokens of a text prove agrees with its parse tree.
pub mod tokens {
    use fencegate_statement::rows::Rows;
    use fencegate_statement::{
        Encoding, Lexing, Script, ServerEncoding, Statement, analyze, analyze_rows, read_tokens,
    };
    use std::sync::Arc;

    const ENCODINGS: [Encoding; 3] = [Encoding::Utf8, Encoding::AsciiSafe, Encoding::AsciiUnsafe];

    pub fn check(text: &[u8]) -> bool {
        let mut proved = false;
        for encoding in ENCODINGS {
            for (standard_conforming_strings, release) in [(true, Lexing::NEWEST), (false, Lexing::NEWEST), (true, 15)]
            {
                let server = ServerEncoding::Utf8;
                proved |= agrees(text, Lexing { standard_conforming_strings, encoding, server, release });
            }
        }
        proved
    }

    /// Returns true if the tokens prove something and the parsers accept the text.
    pub fn agrees(text: &[u8], lexing: Lexing) -> bool {
        let Some((proved, read)) = both(text, lexing) else { return false };
        assert_eq!(proved, read, "{}", text.escape_ascii());
        same_rows(text, lexing);
        true
    }

    /// The tree has every column value that the tokens show. Tokens show only plain constants, which depend on no operator
    /// or type in the search path.
    fn same_rows(text: &[u8], lexing: Lexing) {
        let (Some(proved), Ok(read)) = (read_tokens(text, lexing, true), analyze_rows(text, lexing)) else { return };
        let rows =
            |script: &Script| script.statements.first().and_then(|first| Some(first.writes.first()?.rows.clone()));
        if let Some(proved) = rows(&proved).filter(|rows| !rows.are_unread()) {
            assert!(proved.implies_no_more_than(&rows(&read).unwrap_or_default()), "{}", text.escape_ascii());
        }
    }

    /// Returns the statements as the tokens prove them and as the parsers read them, if both succeed.
    pub fn both(text: &[u8], lexing: Lexing) -> Option<(Vec<Statement>, Vec<Statement>)> {
        Some((sorted(read_tokens(text, lexing, false)?), sorted(analyze(text, lexing).ok()?)))
    }

    /// Removes the parts that may differ: the order of functions, the range (a reader may include trailing comments), the
    /// rows and the reads.
    fn sorted(script: Script) -> Vec<Statement> {
        let mut statements: Vec<_> = script.statements.into_iter().map(Arc::unwrap_or_clone).collect();
        for statement in &mut statements {
            statement.functions.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
            statement.range = 0..0;
            (statement.reads, statement.reads_more, statement.keys_by_path) = (Vec::new(), false, false);
            statement.writes.iter_mut().for_each(|write| write.rows = Rows::default());
        }
        statements
    }
}
