//! Text between the elements of HTML and SVG, and in their attributes.
//!
//! Must never let a text through as it came: what is markup in it is escaped, what XML does not allow or what turns the
//! direction of writing is replaced, and what is too long is cut.

/// At most so many characters, none of which is markup.
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
