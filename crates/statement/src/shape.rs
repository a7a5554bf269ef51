//! Shapes of texts: texts with one shape have the same effects, so that the cache keeps one analysis for all of them.
//!
//! A shape consists of the text's tokens. Comments and white space between two tokens become one space, as they are to
//! PostgreSQL's lexer; [`Literals`] lists the treatments of literals.
//!
//! Must never
//! - assign one shape to two texts that the server's lexer splits differently: a text with an uncertain token has no shape;
//! - let a shape stand for values that the analysis depends on.

use super::analyze::read_text;
use super::cache::Analysis;
use super::parameter::is_set_config;
use super::rows::{ColumnValue, Distinct, LONGEST_KEY, Rows, ValueType};
use super::tokens::{Lexeme, Lexemes};
use super::{Encoding, Lexing, ParameterEffect, Script, ServerEncoding, Statement, StatementKind, Unreadable};
use std::ops::Range;
use std::sync::Arc;

/// Maximum length of a text that has a shape, in bytes.
const LONGEST: usize = 16 << 10;

/// Parameters that replace literals of one type are numbered from a multiple of this number. A text has fewer literals.
const NUMBERS: usize = 100_000;

/// The replacement of plain strings and numbers in a shape. Other literals, such as `$$a$$` and `1e5`, always stay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Literals {
    /// The literals themselves: for analyses that depend on them.
    Kept,
    /// Their types: for analyses of names alone, and for SET of `lease.fence`, whose value a literal completes. A list of
    /// literals after IN counts as one literal.
    Typed,
    /// Parameters, whose numbers show the types: for analyses whose rows the values of the literals complete. A text with
    /// parameters of its own has no such shape, because the server infers their types from literals beside them.
    Numbered,
}

/// The shape of a text, for one treatment of its literals.
pub(super) struct Shape<'t> {
    /// Begins with a NUL, so it never equals a text.
    key: Vec<u8>,
    literals: Literals,
    text: &'t [u8],
    /// Strings and numbers that are replaced, with their types.
    left_out: Vec<(Range<usize>, u8)>,
    /// True if other texts can have the shape.
    is_common: bool,
}

const HEAD: usize = 3;

/// The type of a string.
pub(super) const STRING: u8 = b's';

impl<'t> Shape<'t> {
    /// None if the tokens are uncertain, or if the shape would stand for this text alone.
    pub(super) fn of(text: &'t [u8], lexing: Lexing, literals: Literals) -> Option<Self> {
        if !lexing.standard_conforming_strings || text.len() > LONGEST || !is_sure(text, lexing) {
            return None;
        }
        let mut key = Vec::with_capacity(text.len() + 16);
        key.extend([0, literals as u8, u8::from(text.is_ascii())]);
        let mut shape = Shape { key, literals, text, left_out: Vec::new(), is_common: false };
        let mut tokens = Lexemes::new(text, lexing.standard_conforming_strings);
        let (mut end, mut last, mut list) = (0, Lexeme::Symbol(b';'), List::None);
        while let Some(token) = tokens.next() {
            shape.gap(&text[end..tokens.start()]);
            end = tokens.end();
            let piece = &text[tokens.start()..end];
            let kind = match token {
                Lexeme::Unsure => return None,
                // A string may continue after a line break.
                Lexeme::Literal if last == Lexeme::Literal => return None,
                // The lexer reads `.1.in` as a number, a dot and a name.
                Lexeme::Literal if last == Lexeme::Symbol(b'.') && piece.contains(&b'.') => return None,
                // The lexer reads `.1` as a number, and the N of `N'a'` as part of the literal.
                Lexeme::Literal if last == Lexeme::Symbol(b'.') || last.is(b"n") => None,
                Lexeme::Literal => shape.literal(tokens.start()..end)?,
                _ => None,
            };
            if literals == Literals::Typed {
                list = list.after(token, kind, last, &mut shape.key);
            }
            if kind.is_none() {
                shape.key.extend_from_slice(piece);
            }
            last = token;
        }
        shape.gap(&text[end..]);
        shape.is_common.then_some(shape)
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Replaced literals with their types. Empty if the shape depends on more of them.
    pub(super) fn left_out(&self) -> &[(Range<usize>, u8)] {
        // A literal can determine whether the text is ASCII.
        if self.text.is_ascii() { &self.left_out } else { &[] }
    }

    fn gap(&mut self, gap: &[u8]) {
        if !gap.is_empty() {
            let has_comment = || !gap.iter().all(|byte| byte.is_ascii_whitespace() || *byte == b'\x0b');
            self.is_common |= self.literals != Literals::Numbered && has_comment();
            self.key.push(b' ');
        }
    }

    /// Adds a literal or its replacement, and returns the type of a replaced one. None: the text has no shape.
    fn literal(&mut self, place: Range<usize>) -> Option<Option<u8>> {
        let literal = &self.text[place.clone()];
        let kind = match literal {
            [b'$', b'0'..=b'9', ..] if self.literals == Literals::Numbered => return None,
            // UESCAPE may follow.
            [b'u' | b'U', ..] => return None,
            [b'\'', ..] => Some(STRING),
            // PostgreSQL's lexer splits it: `1.1.in` contains the name `in`.
            _ if literal.iter().filter(|byte| **byte == b'.').count() > 1 => return None,
            _ => kind_of_number(literal),
        };
        match (self.literals, kind) {
            (Literals::Kept, _) | (_, None) => return Some(None),
            (Literals::Typed, Some(kind)) => {
                self.key.extend([0, kind]);
                self.left_out.push((place, kind));
            }
            // Stays in the shape, because no key can have this value.
            (Literals::Numbered, Some(_)) if constant(literal).is_none() => return Some(None),
            (Literals::Numbered, Some(kind)) => {
                let number = usize::from(kind) * NUMBERS + self.left_out.len();
                // Without the spaces it may become part of a name.
                self.key.extend_from_slice(format!(" ${number} ").as_bytes());
                self.left_out.push((place, kind));
            }
        }
        if self.key.len() > LONGEST {
            return None;
        }
        self.is_common = true;
        Some(kind)
    }

    /// An analysis for every text of this shape, given that of one. None if it depends on more than the shape.
    pub(super) fn common(&self, read: &Result<Script, Unreadable>, lexing: Lexing) -> Option<Script> {
        let [statement] = read.as_ref().ok()?.statements.as_slice() else { return None };
        let statement = match self.literals {
            Literals::Kept => Statement { range: Statement::WHOLE, ..Statement::clone(statement) },
            Literals::Typed => names(statement).or_else(|| self.without_value(statement))?,
            Literals::Numbered => {
                let numbered = read_text(&self.key[HEAD..], lexing, true).ok()?;
                let [numbered] = numbered.statements.as_slice() else { return None };
                let numbered = plain(numbered)?;
                (with_rows(&numbered, &|number| self.numbered(number)) == plain(statement)?).then_some(numbered)?
            }
        };
        Some(Script { statements: vec![Arc::new(statement)] })
    }

    /// A SET of `lease.fence` without its value, if the value is the only literal.
    fn without_value(&self, statement: &Statement) -> Option<Statement> {
        let ParameterEffect::Set { local, .. } = statement.parameter else { return None };
        let parameter = ParameterEffect::Set { value: String::new(), local };
        let common = Statement { kind: StatementKind::Set, parameter, range: Statement::WHOLE, ..Statement::default() };
        let statement = Statement { range: Statement::WHOLE, ..statement.clone() };
        (self.with_value(&common)? == statement).then_some(common)
    }

    /// The analysis of this text, given the one for its shape with typed literals. None if the text must be read.
    pub(super) fn completed(&self, common: &Analysis) -> Option<Analysis> {
        match common.as_ref().as_ref().map(|script| script.statements.as_slice()) {
            Ok([statement]) if matches!(statement.parameter, ParameterEffect::Set { .. }) => {
                Some(Arc::new(Ok(Script { statements: vec![Arc::new(self.with_value(statement)?)] })))
            }
            _ => Some(common.clone()),
        }
    }

    /// The statement with the value as the server will store it. A number that begins with 0 must be read from the
    /// tree.
    fn with_value(&self, common: &Statement) -> Option<Statement> {
        let ParameterEffect::Set { local, .. } = common.parameter else { return None };
        let [(place, _)] = self.left_out.as_slice() else { return None };
        let literal = std::str::from_utf8(&self.text[place.clone()]).ok()?;
        let value = match literal.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
            Some(inner) => inner.replace("''", "'"),
            None => (!literal.starts_with('0')).then(|| literal.to_owned())?,
        };
        Some(Statement { parameter: ParameterEffect::Set { value, local }, ..common.clone() })
    }

    /// The analysis of this text, given the one for its shape with numbered literals.
    pub(super) fn complete(&self, common: &Script) -> Script {
        completed(common, |number| self.numbered(number))
    }

    fn numbered(&self, number: usize) -> Option<&[u8]> {
        Some(&self.text[self.left_out.get(number)?.0.clone()])
    }
}

/// The analysis of a text, given the one for its shape with numbered literals. `literal`: the literal that replaces a number.
pub(super) fn completed<'t>(common: &Script, literal: impl Fn(usize) -> Option<&'t [u8]>) -> Script {
    let complete = |statement: &Arc<Statement>| Arc::new(with_rows(statement, &literal));
    Script { statements: common.statements.iter().map(complete).collect() }
}

fn with_rows<'t>(common: &Statement, literal: &impl Fn(usize) -> Option<&'t [u8]>) -> Statement {
    let replacement = |value: &ColumnValue, values: &mut Distinct| {
        values.add(match value {
            ColumnValue::Parameter { number, cast, .. } if *number >= NUMBERS => {
                let (text, kind) = constant(literal(number % NUMBERS)?)?;
                ColumnValue::Literal { text, kind: cast.or(kind) }
            }
            value => value.clone(),
        });
        Some(())
    };
    let mut statement = common.clone();
    for write in &mut statement.writes {
        write.rows = write.rows.replaced(replacement);
    }
    statement
}

/// A list of literals of one type after IN.
#[derive(Clone, Copy)]
enum List {
    None,
    /// IN.
    Announced,
    /// `IN (`.
    Open,
    /// After a literal of this type: the end of the first one's key.
    Item(u8, usize),
    Comma(u8, usize),
}

impl List {
    /// Advances to the next token. A finished list keeps only its first literal. `kind`: the type of a literal that is left out.
    fn after(self, token: Lexeme, kind: Option<u8>, last: Lexeme, key: &mut Vec<u8>) -> Self {
        match (self, token, kind) {
            (List::Open, Lexeme::Literal, Some(kind)) => List::Item(kind, key.len()),
            (List::Comma(known, end), Lexeme::Literal, Some(kind)) if known == kind => List::Item(known, end),
            (List::Item(kind, end), Lexeme::Symbol(b','), _) => List::Comma(kind, end),
            (List::Announced, Lexeme::Symbol(b'('), _) => List::Open,
            (List::Item(_, end), Lexeme::Symbol(b')'), _) => {
                key.truncate(end);
                List::None
            }
            _ if token.is(b"in") && last != Lexeme::Symbol(b'.') => List::Announced,
            _ => List::None,
        }
    }
}

/// Returns true if the meaning of names and escapes does not depend on the contents of literals and comments.
fn is_sure(text: &[u8], lexing: Lexing) -> bool {
    let is_utf8 = lexing.encoding == Encoding::Utf8 && lexing.server == ServerEncoding::Utf8;
    let is_plain = || is_utf8 && !text.contains(&b'\\') && std::str::from_utf8(text).is_ok();
    !text.contains(&0) && (text.is_ascii() || is_plain())
}

/// The grammar distinguishes integers of 32 bits from other numbers. Letters, as in `1e5` or `0x1f`, have no kind.
pub(super) fn kind_of_number(number: &[u8]) -> Option<u8> {
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let is_short =
        || number.len() < 10 || std::str::from_utf8(number).is_ok_and(|number| number.parse::<i32>().is_ok());
    match number.iter().position(|byte| *byte == b'.') {
        None => are_digits(number).then(|| if is_short() { b'i' } else { b'f' }),
        Some(point) => (are_digits(&number[..point]) && are_digits(&number[point + 1..])).then_some(b'f'),
    }
}

/// The value of a plain string or number in a column, as from the tree. None if a key cannot have it.
pub(super) fn constant(literal: &[u8]) -> Option<(String, Option<ValueType>)> {
    let literal = std::str::from_utf8(literal).ok()?;
    let (text, kind) = match literal.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        Some(inner) => (inner.replace("''", "'"), None),
        None => (literal.parse::<i64>().ok()?.to_string(), Some(ValueType::Integer)),
    };
    (text.len() <= LONGEST_KEY).then_some((text, kind))
}

/// The statement without positions, if its literals determine only the rows that it writes. `set_config` depends on its arguments.
fn plain(statement: &Statement) -> Option<Statement> {
    let Statement { range, kind, writes, keys_by_path, functions, reads, reads_more, parameter, .. } =
        statement.clone();
    let plain = Statement {
        kind,
        writes,
        keys_by_path,
        functions,
        reads,
        reads_more,
        parameter,
        range: Statement::WHOLE,
        ..Statement::default()
    };
    let is_plain = kind.is_query()
        && kind != StatementKind::Merge
        && matches!(plain.parameter, ParameterEffect::None | ParameterEffect::Unknown)
        && !plain.functions.iter().any(is_set_config);
    (is_plain && Statement { range, ..plain.clone() } == *statement).then_some(plain)
}

/// A plain statement without its rows.
fn names(statement: &Statement) -> Option<Statement> {
    let mut names = plain(statement)?;
    names.writes.iter_mut().for_each(|write| write.rows = Rows::left_out());
    names.keys_by_path = false;
    names.settle();
    Some(names)
}
