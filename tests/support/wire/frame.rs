//! Messages of a server: one message, the fields of an error, and transcripts that can be compared.

use std::fmt;

/// A message from the server.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    pub tag: u8,
    pub body: Vec<u8>,
}

impl Frame {
    /// The fields of an ErrorResponse or a NoticeResponse.
    pub fn fields(&self) -> Fields {
        assert!(matches!(self.tag, b'E' | b'N'), "{self:?} has no error fields");
        let texts = self.body.split(|byte| *byte == 0).filter(|field| !field.is_empty());
        Fields(texts.map(|field| (field[0] as char, String::from_utf8_lossy(&field[1..]).into_owned())).collect())
    }

    /// The columns of a DataRow, as text.
    pub fn columns(&self) -> Vec<Option<String>> {
        assert_eq!(self.tag, b'D', "{self:?} is no row");
        let mut rest = &self.body[2..];
        let mut columns = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = i32::from_be_bytes(*length);
            let (value, after) = after.split_at(usize::try_from(length).unwrap_or(0));
            columns.push((length >= 0).then(|| String::from_utf8_lossy(value).into_owned()));
            rest = after;
        }
        columns
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 400;
        let shown = &self.body[..self.body.len().min(SHOWN)];
        write!(f, "{} {:>3} \"{}\"", self.tag as char, self.body.len(), shown.escape_ascii())
    }
}

/// The fields of an error or notice, by their one-letter codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields(Vec<(char, String)>);

impl Fields {
    /// Empty if the server sent no such field.
    pub fn get(&self, code: char) -> &str {
        self.0.iter().find(|(field, _)| *field == code).map_or("", |(_, value)| value)
    }

    pub fn severity(&self) -> &str {
        self.get('V')
    }

    pub fn code(&self) -> &str {
        self.get('C')
    }

    pub fn message(&self) -> &str {
        self.get('M')
    }

    pub fn detail(&self) -> &str {
        self.get('D')
    }

    pub fn hint(&self) -> &str {
        self.get('H')
    }
}

/// The first error, if any.
pub fn error_in(frames: &[Frame]) -> Option<Fields> {
    frames.iter().find(|frame| frame.tag == b'E').map(Frame::fields)
}

/// All rows.
pub fn rows_in(frames: &[Frame]) -> Vec<Vec<Option<String>>> {
    frames.iter().filter(|frame| frame.tag == b'D').map(Frame::columns).collect()
}

/// The transcript, with random values and values that differ between processes masked: the body of BackendKeyData,
/// salts and nonces of the authentication, and the process id of a notification.
pub fn exact(frames: &[Frame]) -> Vec<Frame> {
    const MD5: u32 = 5;
    const SASL_CONTINUE: u32 = 11;
    const SASL_FINAL: u32 = 12;
    let mask = |frame: &Frame| {
        let kept = match (frame.tag, frame.body.first_chunk().map(|kind| u32::from_be_bytes(*kind))) {
            (b'R', Some(MD5 | SASL_CONTINUE | SASL_FINAL)) => &frame.body[..4],
            (b'K', _) => &[],
            (b'A', _) => &frame.body[4..],
            _ => &frame.body[..],
        };
        Frame { tag: frame.tag, body: kept.to_vec() }
    };
    frames.iter().map(mask).collect()
}

/// Like [`exact`], but reduces each error to its severity and SQLSTATE, because the proxy words some errors itself.
pub fn normalised(frames: &[Frame]) -> Vec<Frame> {
    let reduce = |frame: Frame| match frame.tag {
        b'E' => {
            let fields = frame.fields();
            let body = format!("S{} V{} code={}", fields.get('S'), fields.severity(), fields.code());
            Frame { tag: b'E', body: body.into_bytes() }
        }
        _ => frame,
    };
    exact(frames).into_iter().map(reduce).collect()
}
