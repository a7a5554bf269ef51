//! Texts that were read recently, each with the positions of its literals. A text that differs from one of them only in
//! literals of the same types has the same shape, and need not be split into tokens.
//!
//! Must never
//! - accept a text whose shape differs;
//! - search: each text has one place, so that hostile texts can only displace others.

use super::Lexing;
use super::cache::{Analysis, weight};
use super::shape::{STRING, completed, constant, kind_of_number};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

const PLACES: usize = 256;

/// Maximum length of a kept text and maximum weight of its analysis, in bytes: a few MiB for all places.
const LONGEST: usize = 1024;
const MAX_WEIGHT: usize = 8 * 1024;

/// Beginning of a text that determines its place, in bytes.
const BEGINNING: usize = 32;

/// Recently read texts.
#[derive(Debug)]
pub(super) struct Recent([Mutex<Option<Template>>; PLACES]);

impl Default for Recent {
    fn default() -> Self {
        Recent([const { Mutex::new(None) }; PLACES])
    }
}

/// The requests that a kept analysis serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// Those without rows.
    Names,
    /// All, because no literal may differ, or the text writes nothing.
    All,
    /// All, once literals have replaced the parameters of [`super::shape::Literals::Numbered`].
    Completed,
}

impl Recent {
    /// The analysis of a text with the same shape, for requests with rows if `with_rows`.
    pub(super) fn find(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        let place = self.place(text)?.lock();
        let template = place.as_ref()?;
        if template.lexing != lexing || template.serves == Serves::Names && with_rows {
            return None;
        }
        if template.serves != Serves::Completed {
            return template.matches(text, |_| true).then(|| template.analysis.clone());
        }
        let mut literals = Vec::with_capacity(template.literals.len());
        let is_same = template.matches(text, |literal| {
            literals.push(literal);
            constant(literal).is_some()
        });
        let common = is_same.then(|| template.analysis.clone())?;
        drop(place);
        let common = common.as_ref().as_ref().ok()?;
        Some(Arc::new(Ok(completed(common, |number| literals.get(number).copied()))))
    }

    /// Keeps a text that was found in the cache. `literals`: those that may differ, in order, with their types.
    pub(super) fn keep(
        &self,
        text: &[u8],
        literals: &[(Range<usize>, u8)],
        lexing: Lexing,
        serves: Serves,
        analysis: &Analysis,
    ) {
        let Some(place) = self.place(text).filter(|_| weight(analysis) <= MAX_WEIGHT) else { return };
        let analysis = analysis.clone();
        let template = Template { text: text.into(), literals: literals.into(), lexing, serves, analysis };
        // Free the other memory without the lock.
        let _replaced = place.lock().replace(template);
    }

    /// The place depends on the text's beginning, up to the first literal, and on its approximate length. Most texts with the
    /// same beginning have different lengths.
    fn place(&self, text: &[u8]) -> Option<&Mutex<Option<Template>>> {
        if text.len() > LONGEST {
            return None;
        }
        let mut hash = text.len() as u32 / 16;
        for byte in text.iter().take(BEGINNING).take_while(|byte| !matches!(byte, b'0'..=b'9' | b'\'')) {
            hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
        Some(&self.0[(hash >> 16) as usize % PLACES])
    }
}

#[derive(Debug)]
struct Template {
    text: Box<[u8]>,
    literals: Box<[(Range<usize>, u8)]>,
    lexing: Lexing,
    serves: Serves,
    analysis: Analysis,
}

impl Template {
    /// The text between two literals is the same, so the lexer splits it in the same way if each literal ends where the next
    /// piece begins. `accepts` decides about each literal, in order.
    fn matches<'t>(&self, text: &'t [u8], mut accepts: impl FnMut(&'t [u8]) -> bool) -> bool {
        let (mut rest, mut start) = (text, 0);
        for (place, kind) in &self.literals {
            let Some(behind) = rest.strip_prefix(&self.text[start..place.start]) else { return false };
            let Some(length) = length_of_literal(behind, *kind) else { return false };
            if !accepts(&behind[..length]) {
                return false;
            }
            (rest, start) = (&behind[length..], place.end);
        }
        *rest == self.text[start..]
    }
}

/// Length of the literal of this type at the beginning of the text. Also None for some valid literals: their texts are
/// then split into tokens.
fn length_of_literal(text: &[u8], kind: u8) -> Option<usize> {
    if kind != STRING {
        let length = text.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'.')).unwrap_or(text.len());
        return (kind_of_number(&text[..length]) == Some(kind)).then_some(length);
    }
    if text.first() != Some(&b'\'') {
        return None;
    }
    let mut end = 1;
    loop {
        match (*text.get(end)?, text.get(end + 1)) {
            (b'\'', Some(b'\'')) => end += 2,
            (b'\'', _) => return Some(end + 1),
            // Whether a text is ASCII is part of its shape.
            (1..=127, _) => end += 1,
            _ => return None,
        }
    }
}
