//! Upper bounds on the cost of parsing a text, from its tokens: time, and stack space for the parser's trees.
//!
//! Must never call a text cheap for which the parsers' cost grows faster than its tokens: if tokens are uncertain,
//! every byte counts as one. Must never let a tree overflow the stack of the thread that reads it, which would end the
//! process.

use super::Lexing;
use super::tokens::{Lexeme, Lexemes};
use std::thread;

/// With this many tokens the parsers take milliseconds, a few MiB, and a fraction of any thread's stack.
const MOST_TOKENS: usize = 2_000;

/// Maximum length of a text that is parsed immediately, in bytes.
const LONGEST: usize = 64 << 10;

/// Returns true if the parsers may read the text immediately, on a thread that serves others.
pub(super) fn is_cheap(text: &[u8], lexing: Lexing) -> bool {
    text.len() <= LONGEST && relexed(text) <= LONGEST && tokens_in_tree(text, lexing) <= MOST_TOKENS
}

/// Number of tokens in the tree. For `SET (a, b) = (SELECT …)`, the tree repeats the right side for every column,
/// including nested ones: each such list of columns multiplies everything inside.
fn tokens_in_tree(text: &[u8], lexing: Lexing) -> usize {
    let (mut count, mut factor) = (0_usize, 1_usize);
    let mut lists = Lists::default();
    let mut tokens = Lexemes::new(text, lexing.standard_conforming_strings);
    // End of the last token. An uncertain token extends to the end of the text.
    let mut end = 0;
    while let Some(token) = tokens.next() {
        if token == Lexeme::Unsure {
            let left = &text[end..];
            if left.contains(&b'=') && assigns(text) {
                return usize::MAX;
            }
            count += left.len();
        }
        end = tokens.end();
        count += 1;
        factor = factor.saturating_mul(lists.repeated(token));
        if count.saturating_mul(factor) > MOST_TOKENS {
            return usize::MAX;
        }
    }
    count.saturating_mul(factor)
}

/// Returns true if the text may assign something: the parser accepts no other spelling of SET.
fn assigns(text: &[u8]) -> bool {
    text.windows(3).any(|word| word.eq_ignore_ascii_case(b"set"))
}

/// Finds lists of columns that are assigned: after SET or a comma, and before `=`.
#[derive(Default)]
struct Lists {
    /// For each open parenthesis: the number of its items so far, and whether it may be such a list.
    open: Vec<(usize, bool)>,
    /// The items of the list that has just been closed.
    closed: Option<usize>,
    may_begin: bool,
}

impl Lists {
    /// How often the tree repeats the tokens that follow this one.
    fn repeated(&mut self, token: Lexeme) -> usize {
        let (may_begin, closed) = (std::mem::take(&mut self.may_begin), self.closed.take());
        match token {
            Lexeme::Symbol(b'(') => self.open.push((1, may_begin)),
            Lexeme::Symbol(b')') => {
                self.closed = self.open.pop().and_then(|(items, may_be_list)| may_be_list.then_some(items));
            }
            Lexeme::Symbol(b',') => {
                self.may_begin = true;
                self.open.iter_mut().last().into_iter().for_each(|(items, _)| *items += 1);
            }
            Lexeme::Symbol(b'=') => return closed.unwrap_or(1),
            Lexeme::Word(word) => self.may_begin = word.eq_ignore_ascii_case(b"set"),
            _ => {}
        }
        1
    }
}

/// Approximate number of bytes that PostgreSQL's lexer reads more than once.
///
/// The lexer reads a whole run of operator characters before it finds that only the first of them form an operator, or
/// open a nested comment. Its time for `++++…` and `/*/*/*…` therefore grows with the square of their length.
pub(super) fn relexed(text: &[u8]) -> usize {
    let runs = text.split(|byte| !b"~!@#^&|`?+-*/%<>=".contains(byte));
    runs.filter(|run| run.len() > 100).map(|run| run.len() * restarts(run)).fold(0, usize::saturating_add)
}

/// Number of places in a run of operator characters after which the lexer may start again. `--` ends the line for it.
fn restarts(run: &[u8]) -> usize {
    let pluses = run.iter().filter(|byte| **byte == b'+').count();
    let comments = run.windows(2).filter(|pair| pair == b"/*").count();
    let minuses = run.split(|byte| *byte != b'-').filter(|minuses| minuses.len() == 1).count();
    pluses + comments + minuses
}

/// The tree of a text with at most this many tokens takes less than half a megabyte.
const SHALLOW: usize = 60;

/// Sufficient for every tree that the parser creates: it refuses trees that need more than 2 MiB of its stack, about
/// 4,500 levels. Each stack is used once, so its memory is returned.
pub(crate) const SIZE: usize = if cfg!(debug_assertions) { 256 << 20 } else { 64 << 20 };

/// Runs a recursion as deep as the text's tree. None if the system cannot provide the stack.
pub(super) fn with_room<R: Send>(
    text: &[u8],
    standard_conforming_strings: bool,
    work: impl FnOnce() -> R + Send,
) -> Option<R> {
    let mut tokens = Lexemes::new(text, standard_conforming_strings);
    let is_shallow = tokens.by_ref().take(SHALLOW).all(|token| token != Lexeme::Unsure) && tokens.next().is_none();
    if is_shallow {
        return Some(work());
    }
    thread::scope(|scope| {
        let reader = thread::Builder::new().stack_size(SIZE).spawn_scoped(scope, work).ok()?;
        reader.join().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_texts_are_cheap() {
        let row = "(1, 'x', now(), NULL, 3.5)";
        for text in [
            "UPDATE t SET (a, b, c) = (SELECT x, y, z FROM u WHERE u.id = t.id) WHERE n = 1".to_owned(),
            format!("INSERT INTO t VALUES {} ON CONFLICT (a, b) DO NOTHING", vec![row; 100].join(", ")),
            format!("SELECT * FROM t WHERE (a, b) = (1, 2) AND n IN ({})", vec!["1"; 900].join(", ")),
            format!("SELECT '{}'", "'' \\ ( ,".repeat(5_000)),
            "SELECT 0x1, n FROM t WHERE (a, b) = (1, 2)".to_owned(),
            "UPDATE t SET a = 5 WHERE b = U&\"c\"".to_owned(),
        ] {
            assert!(is_cheap(text.as_bytes(), Lexing::USUAL), "{}", &text[..60]);
        }
    }

    #[test]
    fn repetition_in_the_tree_makes_a_text_expensive() {
        let assign = |columns: &str| format!("UPDATE t SET {columns} = (SELECT 1)");
        let nested = (0..12).fold("SELECT 1, 2".to_owned(), |inner, level| {
            format!("WITH w{level} AS (UPDATE t SET x = 1, (a, b) = ({inner}) RETURNING *) SELECT 1, 2")
        });
        let unsure = |token: &str| {
            let nested = (0..12).fold("SELECT 1, 2".to_owned(), |inner, _| {
                format!("WITH w AS (UPDATE t SET (a, b) = ({inner}) RETURNING 1) SELECT 1, 2")
            });
            format!("SELECT {token}; {nested}")
        };
        let sublist = assign(&format!("(a[f(1, 2)], {})", vec!["b"; 300].join(", ")));
        for text in [
            assign(&format!("({})", vec!["a"; 100].join(","))),
            nested,
            sublist,
            unsure("0x1"),
            unsure("1_0"),
            unsure("U&\"a\""),
            unsure("\u{1}"),
            "SELECT 1 $".to_owned() + &"x ".repeat(2_000),
            "SELECT 1 ".to_owned() + &"cross join a ".repeat(1_000),
            "++".repeat(400),
        ] {
            assert!(!is_cheap(text.as_bytes(), Lexing::USUAL), "{}", &text[..30]);
        }
    }
}
