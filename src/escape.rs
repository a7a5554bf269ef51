//! Text in elements and attributes of HTML and SVG.
//!
//! Must never pass a text through unchanged: it escapes markup, replaces characters that XML does not allow or that
//! change the writing direction, and truncates long texts.

/// Escapes at most this many characters.
pub(crate) fn escaped(text: &str, most: usize) -> String {
    let is_cut = text.chars().nth(most).is_some();
    let shown = text.chars().take(if is_cut { most.saturating_sub(1) } else { most });
    let mut escaped = String::new();
    for c in shown.chain(is_cut.then_some('…')) {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
