//! Elements of an SVG, and the time axis: positions of points in time, and its labels.
//!
//! Must never write an unescaped text: `escape` provides the escaping.

use super::event::Micros;
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

const SECOND: Micros = 1_000_000;
const MINUTE: Micros = 60 * SECOND;
const HOUR: Micros = 60 * MINUTE;
const DAY: Micros = 24 * HOUR;
/// Maximum number of labels.
const MOST_TICKS: Micros = 8;
/// Usual steps besides 1, 2 and 5 times a power of ten of microseconds and of days.
const STEPS: [Micros; 15] = [
    10 * SECOND,
    15 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
];

/// Maps time to horizontal positions.
pub(super) struct Scale {
    from: Micros,
    length: Micros,
    left: f64,
    width: f64,
}

impl Scale {
    /// A single moment gets a nonzero length.
    pub(super) fn new((from, to): (Micros, Micros), left: f64, width: f64) -> Self {
        Scale { from, length: (to - from).max(1), left, width }
    }

    pub(super) fn x(&self, at: Micros) -> f64 {
        // Exact enough for positions.
        #[expect(clippy::cast_precision_loss)]
        let share = (at - self.from) as f64 / self.length as f64;
        self.left + share.clamp(0.0, 1.0) * self.width
    }

    /// The labeled moments, with the time since the beginning.
    pub(super) fn offsets(&self) -> Vec<(Micros, String)> {
        self.steps().map(|(offset, step)| (self.from + offset, name(offset, step))).collect()
    }

    /// The labeled moments, with the time before the end.
    pub(super) fn ages(&self) -> Vec<(Micros, String)> {
        let name = |age: Micros, step| if age == 0 { "now".to_owned() } else { format!("−{}", name(age, step)) };
        self.steps().map(|(age, step)| (self.from + self.length - age, name(age, step))).collect()
    }

    /// Each moment as a number of steps, and the step.
    fn steps(&self) -> impl Iterator<Item = (Micros, Micros)> {
        // A label needs this width.
        #[expect(clippy::cast_possible_truncation)]
        let most = ((self.width / 64.0) as Micros).clamp(1, MOST_TICKS);
        let (step, length) = (step(self.length / most), self.length);
        (0..=most).map(move |number| (number * step, step)).filter(move |(offset, _)| *offset <= length)
    }
}

/// The smallest step that is longer than `least`.
fn step(least: Micros) -> Micros {
    let powers =
        |unit: Micros, most: u32| (0..most).flat_map(move |power| [1, 2, 5].map(|it| it * unit * 10_i64.pow(power)));
    let steps = powers(1, 7).take_while(|it| *it < 10 * SECOND).chain(STEPS).chain(powers(DAY, 6));
    steps.into_iter().find(|it| *it > least).unwrap_or(DAY * 1_000_000)
}

fn name(offset: Micros, step: Micros) -> String {
    let (unit, name) = match step {
        _ if step >= DAY => (DAY, "d"),
        _ if step >= HOUR => (HOUR, "h"),
        _ if step >= MINUTE => (MINUTE, "min"),
        _ if step >= 100_000 => (SECOND, "s"),
        _ if step >= 100 => (1000, "ms"),
        _ => (1, "µs"),
    };
    // Show tenths for seconds.
    match (offset % unit) * 10 / unit {
        0 => format!("{} {name}", offset / unit),
        tenths => format!("{}.{tenths} {name}", offset / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        let names =
            |length| Scale::new((7, 7 + length), 0.0, 600.0).offsets().into_iter().map(|it| it.1).collect::<Vec<_>>();
        assert_eq!(names(0), ["0 µs", "1 µs"]);
        assert_eq!(names(2_400_000), ["0 s", "0.5 s", "1 s", "1.5 s", "2 s"]);
        assert_eq!(names(3 * MINUTE).last().unwrap(), "180 s");
        assert_eq!(names(4 * HOUR)[1..3], ["1 h", "2 h"]);
        for length in (0..62).map(|power| 1 << power) {
            assert!((1..=9).contains(&names(length).len()), "{length}: {:?}", names(length));
        }
    }
}
