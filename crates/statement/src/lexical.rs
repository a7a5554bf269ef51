//! Reads texts that are too long or too deep for the parsers. It sees only tokens, and derives from them the effect of
//! a single plain statement.
//!
//! Must never return a result unless it holds for every text with these tokens that PostgreSQL's grammar accepts.
//! Returns None for anything that could hold more: a second statement, WITH, INTO, FOR, and calls of functions that are
//! not known to be harmless.
//! Handles only constants in the rows of a long INSERT, as bulk loads send them: if a value is not a bare number or string,
//! omits its column.

use super::functions::is_harmless;
use super::rows::{Column, ColumnValue, Distinct, LONGEST_KEY, Rows, ValueType};
use super::tokens::{Lexeme, Lexemes};
use super::{Encoding, FunctionName, Lexing, Operation, RelationName, Statement, StatementKind};

/// Key words that might write, lock, alias or call. The distinction does not matter here.
const NEVER: [&[u8]; 8] = [b"at", b"escape", b"for", b"into", b"normalized", b"overlaps", b"similar", b"with"];

/// Key words that can precede a parenthesis and never name a function.
#[rustfmt::skip]
const NO_CALLS: [&[u8]; 34] = [
    b"all", b"and", b"any", b"array", b"between", b"case", b"cast", b"coalesce", b"distinct", b"else", b"except",
    b"exists", b"from", b"greatest", b"having", b"in", b"intersect", b"lateral", b"least", b"limit", b"not",
    b"nullif", b"offset", b"on", b"or", b"returning", b"row", b"select", b"some", b"then", b"union", b"values",
    b"when", b"where",
];

/// Reserved words after which an expression begins, so that a name and a parenthesis that follow are a call.
#[rustfmt::skip]
const BEFORE_CALLS: [&[u8]; 13] = [
    b"and", b"case", b"distinct", b"else", b"having", b"limit", b"not", b"offset", b"or", b"select", b"then", b"when",
    b"where",
];

/// Harmless functions whose names are key words. The grammar reads some of these words as types or special forms.
#[rustfmt::skip]
const KEY_WORDS: [&str; 35] = [
    "bit", "box", "char", "date", "every", "extract", "format", "interval", "json_array", "json_object", "left",
    "like", "name", "normalize", "notlike", "numeric", "oid", "overlaps", "overlay", "point", "position", "right",
    "substring", "text", "time", "timestamp", "timestamptz", "timezone", "varchar", "xml", "xmlagg", "xmlexists",
    "version", "json_objectagg", "json_arrayagg",
];

/// Analyzes the text if its tokens prove its effect; None proves nothing.
pub(super) fn read(text: &[u8], lexing: Lexing) -> Option<Statement> {
    let is_sure = match lexing.encoding {
        Encoding::Utf8 => std::str::from_utf8(text).is_ok(),
        Encoding::AsciiSafe => true,
        Encoding::AsciiUnsafe => text.is_ascii(),
    };
    if !is_sure || text.contains(&0) {
        return None;
    }
    let mut tokens = Lexemes::new(text, lexing.standard_conforming_strings);
    let (mut statement, last) = start(&mut tokens)?;
    let end = Rest { statement: &mut statement, before: None, last, conflict: None }.read(&mut tokens)?;
    let end = end.unwrap_or(text.len());
    let start = text.len() - text.trim_ascii_start().len();
    statement.range = start..(start + text.get(start..end)?.trim_ascii().len());
    statement.settle();
    statement.writes.iter_mut().for_each(|write| write.rows = Rows::unread());
    let inserted = if statement.kind == StatementKind::Insert { inserted_rows(text, lexing) } else { None };
    if let Some((write, rows)) = statement.writes.first_mut().zip(inserted) {
        write.rows = rows;
    }
    Some(statement)
}

/// The kind of the statement, the relation that it writes, and the next token, which shows that the relation's name is
/// complete.
fn start<'t>(tokens: &mut Lexemes<'t>) -> Option<(Statement, Lexeme<'t>)> {
    let mut statement = Statement::default();
    let (outer, mut first) = outer(tokens)?;
    while first == Lexeme::Symbol(b'(') {
        first = tokens.next()?;
        // Only a query can begin with a parenthesis.
        if !first.is(b"select") && !first.is(b"values") && first != Lexeme::Symbol(b'(') {
            return None;
        }
    }
    let (kind, operation) = if first.is(b"select") || first.is(b"values") {
        statement.kind = outer.unwrap_or(StatementKind::Select);
        statement.reads_more = true;
        return Some((statement, first));
    } else if outer.is_some() {
        return None;
    } else if first.is(b"insert") && tokens.next()?.is(b"into") {
        (StatementKind::Insert, Operation::Insert)
    } else if first.is(b"update") {
        (StatementKind::Update, Operation::Update)
    } else if first.is(b"delete") && tokens.next()?.is(b"from") {
        (StatementKind::Delete, Operation::Delete)
    } else {
        return None;
    };
    (statement.kind, statement.reads_more) = (kind, true);
    let (relation, next) = relation(tokens)?;
    let is_plain = match operation {
        Operation::Insert => next == Lexeme::Symbol(b'(') || next.is(b"values"),
        Operation::Update => next.is(b"set"),
        _ => next.is(b"where"),
    };
    statement.add_write(relation, operation);
    is_plain.then_some((statement, next))
}

/// The kind of a statement that contains another one, if it does, and the first token of the inner statement.
fn outer<'t>(tokens: &mut Lexemes<'t>) -> Option<(Option<StatementKind>, Lexeme<'t>)> {
    let first = tokens.next()?;
    if first.is(b"explain") {
        let (kind, first) = explain(tokens)?;
        return Some((Some(kind), first));
    } else if first.is(b"declare") {
        return Some((Some(StatementKind::DeclareCursor), declare(tokens)?));
    }
    Some((None, first))
}

/// `EXPLAIN [ANALYZE] [VERBOSE]`, or `EXPLAIN (…)` with options of a word or two.
fn explain<'t>(tokens: &mut Lexemes<'t>) -> Option<(StatementKind, Lexeme<'t>)> {
    const KINDS: [StatementKind; 2] = [StatementKind::Explain, StatementKind::ExplainAnalyze];
    // The grammar has both spellings.
    let is_analyze = |token| is_any(token, &[b"analyze", b"analyse"]);
    let mut next = tokens.next()?;
    if next != Lexeme::Symbol(b'(') {
        let analyzes = is_analyze(next);
        if analyzes {
            next = tokens.next()?;
        }
        if next.is(b"verbose") {
            next = tokens.next()?;
        }
        return Some((KINDS[usize::from(analyzes)], next));
    }
    // A parenthesis may also begin a query.
    let (mut option, mut analyzes) = (tokens.next()?, false);
    if option.is(b"select") || option.is(b"values") || option == Lexeme::Symbol(b'(') {
        while option == Lexeme::Symbol(b'(') {
            option = tokens.next()?;
        }
        return Some((KINDS[0], option));
    }
    loop {
        let Lexeme::Word(_) = option else { return None };
        let mut end = tokens.next()?;
        // The proxy would have to interpret its value.
        match is_analyze(option) {
            true => analyzes = true,
            false if matches!(end, Lexeme::Word(_) | Lexeme::Literal) => end = tokens.next()?,
            false => {}
        }
        match end {
            Lexeme::Symbol(b',') => option = tokens.next()?,
            Lexeme::Symbol(b')') => return Some((KINDS[usize::from(analyzes)], tokens.next()?)),
            _ => return None,
        }
    }
}

/// `DECLARE name [options] CURSOR [{WITH | WITHOUT} HOLD] FOR`.
fn declare<'t>(tokens: &mut Lexemes<'t>) -> Option<Lexeme<'t>> {
    tokens.next()?.name()?;
    let mut next = tokens.next()?;
    while is_any(next, &[b"binary", b"asensitive", b"insensitive", b"no", b"scroll"]) {
        next = tokens.next()?;
    }
    let hold = next.is(b"cursor").then(|| tokens.next())??;
    let next = match is_any(hold, &[b"with", b"without"]) {
        true => tokens.next()?.is(b"hold").then(|| tokens.next())??,
        false => hold,
    };
    next.is(b"for").then(|| tokens.next())?
}

/// `[schema.]name`, and the token that follows it.
fn relation<'t>(tokens: &mut Lexemes<'t>) -> Option<(RelationName, Lexeme<'t>)> {
    let first = tokens.next()?.name()?;
    match tokens.next()? {
        Lexeme::Symbol(b'.') => {
            let relation = RelationName { schema: Some(first), name: tokens.next()?.name()? };
            Some((relation, tokens.next()?))
        }
        next => Some((RelationName { schema: None, name: first }, next)),
    }
}

fn is_any(token: Lexeme, wanted: &[&[u8]]) -> bool {
    wanted.iter().any(|wanted| token.is(wanted))
}

/// The rest of a statement after its start.
struct Rest<'s, 't> {
    statement: &'s mut Statement,
    /// The token before the last.
    before: Option<Lexeme<'t>>,
    last: Lexeme<'t>,
    /// The action of ON CONFLICT: true for an update.
    conflict: Option<bool>,
}

impl<'t> Rest<'_, 't> {
    /// Returns the end of the statement if a semicolon ends it.
    fn read(mut self, tokens: &mut Lexemes<'t>) -> Option<Option<usize>> {
        while let Some(token) = tokens.next() {
            if token == Lexeme::Symbol(b';') {
                let end = tokens.end() - 1;
                return tokens.all(|token| token == Lexeme::Symbol(b';')).then_some(Some(end));
            }
            self.token(token)?;
            let token = match token {
                // After a dot, key words are names.
                Lexeme::Word(word) if self.last == Lexeme::Symbol(b'.') => Lexeme::Quoted(word),
                token => token,
            };
            (self.before, self.last) = (Some(self.last), token);
        }
        Some(None)
    }

    fn token(&mut self, token: Lexeme<'t>) -> Option<()> {
        match token {
            Lexeme::Unsure => return None,
            Lexeme::Word(_) if is_any(token, &NEVER) => return None,
            // A string that continues after a line break follows the rules of its first part.
            Lexeme::Literal if self.last == Lexeme::Literal => return None,
            // The call turned out to be a type.
            Lexeme::Literal if self.last == Lexeme::Symbol(b')') => return None,
            Lexeme::Symbol(b'(') => return self.parenthesis(),
            _ => {}
        }
        if self.last.is(b"do") {
            let is_update = token.is(b"update");
            let is_first = self.conflict.replace(is_update).is_none();
            if !is_first || self.statement.kind != StatementKind::Insert || !is_update && !token.is(b"nothing") {
                return None;
            }
            if is_update {
                let relation = self.statement.writes.first()?.relation.clone();
                self.statement.add_write(relation, Operation::Update);
            }
        }
        Some(())
    }

    /// A parenthesis after a name may be a call.
    fn parenthesis(&mut self) -> Option<()> {
        let last @ Lexeme::Word(word) = self.last else {
            // A quoted name may be a function. A bracket or parenthesis may end the name of a column.
            let is_open = matches!(self.last, Lexeme::Symbol(symbol) if symbol != b'.');
            return is_open.then_some(());
        };
        let follows = |word: &[u8]| self.before.is_some_and(|before| before.is(word));
        if is_any(last, &NO_CALLS)
            || last.is(b"by") && (follows(b"group") || follows(b"order"))
            || last.is(b"conflict") && follows(b"on")
        {
            return Some(());
        }
        let begins = match self.before {
            None | Some(Lexeme::Symbol(b'.' | b')' | b']' | b':' | b';')) => false,
            Some(Lexeme::Symbol(_)) => true,
            Some(before) => is_any(before, &BEFORE_CALLS),
        };
        let function = FunctionName { schema: None, name: std::str::from_utf8(word).ok()?.to_ascii_lowercase() };
        if !begins || !is_harmless(&function) || KEY_WORDS.contains(&function.name.as_str()) {
            return None;
        }
        if !self.statement.functions.contains(&function) {
            self.statement.functions.push(function);
        }
        Some(())
    }
}

/// Parses `INSERT INTO t [(columns)] VALUES (…), (…)`. None for any other text, or if clauses after the rows may change
/// them.
fn inserted_rows(text: &[u8], lexing: Lexing) -> Option<Rows> {
    let mut tokens = Lexemes::new(text, lexing.standard_conforming_strings);
    // INSERT INTO and the relation.
    tokens.next()?;
    let mut last = tokens.find(|token| *token == Lexeme::Symbol(b'(') || token.is(b"values"))?;
    let mut columns = Vec::new();
    if last == Lexeme::Symbol(b'(') {
        columns = names(&mut tokens)?;
        last = tokens.next()?;
    }
    if !last.is(b"values") {
        return None;
    }
    let mut values: Vec<Option<Distinct>> = Vec::new();
    for row in 0.. {
        if tokens.next()? != Lexeme::Symbol(b'(') {
            return None;
        }
        let width = self::row(text, &mut tokens, &mut values, row == 0)?;
        if width != values.len() {
            return None;
        }
        match tokens.next() {
            Some(Lexeme::Symbol(b',')) => {}
            None | Some(Lexeme::Symbol(b';')) => break,
            Some(word) if word.is(b"on") || word.is(b"returning") => break,
            Some(_) => return None,
        }
    }
    let column = |place: usize| match columns.get(place) {
        None if columns.is_empty() => Some(Column::Placed(place)),
        Some(Some(name)) => Some(Column::Named(name.clone())),
        _ => None,
    };
    let known = values.into_iter().enumerate().filter_map(|(place, values)| Some((column(place)?, values?.list())));
    Some(Rows::new(known))
}

/// The names in a list of columns up to its end; `None` for an item that is more than a name.
fn names(tokens: &mut Lexemes) -> Option<Vec<Option<String>>> {
    let mut names = Vec::new();
    loop {
        let mut name = tokens.next()?.name();
        let mut depth = 0;
        loop {
            match tokens.next()? {
                Lexeme::Symbol(b')') if depth == 0 => {
                    names.push(name);
                    return Some(names);
                }
                Lexeme::Symbol(b',') if depth == 0 => break names.push(name),
                Lexeme::Symbol(b'(' | b'[') => depth += 1,
                Lexeme::Symbol(b')' | b']') => depth -= 1,
                _ => {}
            }
            name = None;
        }
    }
}

/// Adds the values of a row, up to its end. Returns their number.
fn row(text: &[u8], tokens: &mut Lexemes, values: &mut Vec<Option<Distinct>>, is_first: bool) -> Option<usize> {
    let (mut depth, mut width, mut start) = (0, 0, tokens.end());
    loop {
        let token = tokens.next()?;
        match token {
            // `(row).*` represents several values.
            Lexeme::Symbol(b'*') | Lexeme::Unsure => return None,
            Lexeme::Symbol(b'(' | b'[') => depth += 1,
            Lexeme::Symbol(b')' | b']') if depth > 0 => depth -= 1,
            Lexeme::Symbol(b',' | b')') if depth == 0 => {
                let value = value(text.get(start..tokens.end() - 1)?.trim_ascii());
                if is_first {
                    values.push(Some(Distinct::default()));
                }
                add(values.get_mut(width)?, value);
                (width, start) = (width + 1, tokens.end());
                if token == Lexeme::Symbol(b')') {
                    return Some(width);
                }
            }
            _ => {}
        }
    }
}

/// Adds a value to those of a column. An unknown value makes the column unknown.
fn add(values: &mut Option<Distinct>, value: Option<ColumnValue>) {
    match (values.as_mut(), value) {
        (Some(known), Some(value)) => known.add(value),
        _ => *values = None,
    }
}

/// A plain number or string.
fn value(item: &[u8]) -> Option<ColumnValue> {
    let item = std::str::from_utf8(item).ok().filter(|item| item.is_ascii())?;
    if let Some(text) = item.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        let is_plain = text.len() <= LONGEST_KEY && !text.contains(['\'', '\\']);
        return is_plain.then(|| ColumnValue::Literal { text: text.to_owned(), kind: None });
    }
    let digits = item.strip_prefix('-').unwrap_or(item);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = item.parse::<i64>().ok().filter(|_| is_number)?;
    Some(ColumnValue::Literal { text: number.to_string(), kind: Some(ValueType::Integer) })
}
