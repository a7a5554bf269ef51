//! Elements of an SVG.
//!
//! Must never write an unescaped text: `escape` provides the escaping.

use crate::escape::escaped;
use std::fmt::Write;

/// Maximum length of a tooltip, in characters.
const LONGEST_TITLE: usize = 200;
/// Maximum length of a text, in characters.
const LONGEST_TEXT: usize = 200;

/// An SVG under construction.
#[derive(Default)]
pub(super) struct Svg(String);

impl Svg {
    /// The elements, without the outermost one.
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

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let text = escaped(text, LONGEST_TEXT);
        self.line(&format!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#));
    }

    fn line(&mut self, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// Maximum width of a text in characters of this size. Fonts differ, so this is the width in a wide one, in bold.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().map(|c| width_of_character(c) * size).sum()
}

fn width_of_character(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '(' | ')' | '[' | ']' | '/' | 'f'
        | 't' => 0.45,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' => 1.05,
        'A'..='Z' | '<' | '>' | '=' | '+' | '~' | '#' | '&' | '×' => 0.8,
        c if c < '\u{1100}' => 0.66,
        _ => 1.1,
    }
}

/// The text, or as much of its beginning as this width has space for.
pub(super) fn fitting(text: &str, width: f64, size: f64) -> String {
    if width_of(text, size) <= width {
        return text.to_owned();
    }
    let mut left = width - width_of("…", size);
    let fits = |c: &char| {
        left -= width_of_character(*c) * size;
        left >= 0.0
    };
    text.chars().take_while(fits).collect::<String>() + "…"
}
