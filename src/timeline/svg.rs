//! Elements of an SVG.
//!
//! Must never write a text as it came: what is markup in it is escaped, what XML does not allow or what turns the direction of
//! writing is replaced, and what is too long is cut.

use std::fmt::Write;

/// The most characters of a text that is shown when asked for.
const LONGEST_TITLE: usize = 200;

/// An SVG that grows.
#[derive(Default)]
pub(super) struct Svg(String);

impl Svg {
    /// Without the outermost element.
    pub(super) fn content(&self) -> &str {
        &self.0
    }

    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), title: &str) {
        let title = escaped(title, LONGEST_TITLE);
        let rect =
            format!(r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2">"#);
        self.line(&format!("{rect}<title>{title}</title></rect>"));
    }

    pub(super) fn path(&mut self, class: &str, path: &str, title: &str) {
        let title = escaped(title, LONGEST_TITLE);
        self.line(&format!(r#"<path class="{class}" d="{path}"><title>{title}</title></path>"#));
    }

    pub(super) fn rule(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.line(&format!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    /// Of at most so many characters.
    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str, most: usize) {
        let text = escaped(text, most);
        self.line(&format!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#));
    }

    fn line(&mut self, line: &str) {
        // A String takes everything.
        let _ = writeln!(self.0, "{line}");
    }
}

/// At most so many characters, none of which is markup.
pub(super) fn escaped(text: &str, most: usize) -> String {
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
