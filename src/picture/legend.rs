//! The legend: the signs that appear in the picture, and only these.

use super::chart::{Chart, MARGIN, SMALL};
use super::svg::width_of;

/// Distance between two entries, and between two lines.
const BETWEEN: f64 = 16.0;
const LINE: f64 = 18.0;
/// Width of a sign.
const SIGN: f64 = 18.0;

/// A sign with an entry in the legend, in its order there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sign {
    Leads,
    Stalled,
    Late,
    Wait,
    Written,
    Session,
    Rejected,
    CutOff,
}

impl Sign {
    fn meaning(self) -> &'static str {
        match self {
            Sign::Leads => "leads",
            Sign::Stalled => "stalled: no sign of life",
            Sign::Late => "has not noticed that another leads",
            Sign::Wait => "waits to lead",
            Sign::Written => "first write of a session",
            Sign::Session => "session",
            Sign::Rejected => "write rejected",
            Sign::CutOff => "session cut off",
        }
    }
}

impl Chart<'_> {
    /// Draws the legend from this baseline on. Returns the last baseline.
    pub(super) fn draw_legend(&mut self, mut y: f64) -> f64 {
        let mut x = MARGIN;
        for sign in self.signs.clone() {
            let meaning = sign.meaning();
            let width = SIGN + 5.0 + width_of(meaning, SMALL);
            if x > MARGIN && x + width > self.width - MARGIN {
                (x, y) = (MARGIN, y + LINE);
            }
            self.sign(sign, (x + SIGN / 2.0, y - 4.0), meaning);
            self.svg.text("small", (x + SIGN + 5.0, y), meaning);
            x += width + BETWEEN;
        }
        y
    }

    /// Draws a sign with this center.
    pub(super) fn sign(&mut self, sign: Sign, (x, y): (f64, f64), title: &str) {
        self.signs.insert(sign);
        let (left, right) = (x - SIGN / 2.0, x + SIGN / 2.0);
        let (corner, size) = ((left, y - 5.0), (SIGN, 10.0));
        match sign {
            Sign::Leads => self.svg.rect("c0", corner, size, title),
            Sign::Stalled => self.svg.rect("hollow", corner, size, title),
            Sign::Late => self.svg.rect("c0 late", corner, size, title),
            Sign::Wait => self.svg.rule("wait", (left, y), (right, y)),
            Sign::Session => self.svg.rule("session", (left, y), (right, y)),
            Sign::Written => self.svg.rect("written", (x - 1.5, y - 7.0), (3.0, 14.0), title),
            Sign::CutOff => self.svg.rect("end", (x - 4.5, y - 4.5), (9.0, 9.0), title),
            Sign::Rejected => {
                let (left, right, up, down) = (x - 5.0, x + 5.0, y - 5.0, y + 5.0);
                let cross = format!("M{left:.1} {up:.1}L{right:.1} {down:.1}M{left:.1} {down:.1}L{right:.1} {up:.1}");
                self.svg.path("no", &cross, title);
            }
        }
    }
}
