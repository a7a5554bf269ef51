//! The picture: a lane per node, below them a lane per fence, and the legend: the signs that appear in the picture, and only these.
//!
//! Owns sizes, colors and positions. Must never draw more elements than there are positions, nor text beyond the border.

use super::event::Micros;
use super::history::{Fence, History};
use super::svg::{Scale, Svg, fitting, width_of};
use crate::escape::escaped;
use std::collections::{BTreeMap, BTreeSet};

/// Distance between content and border.
pub(super) const MARGIN: f64 = 10.0;
/// Height of a lane's name.
pub(super) const NAME: f64 = 19.0;
/// Height of a row of bars, and of a bar.
pub(super) const ROW: f64 = 20.0;
pub(super) const BAR: f64 = 17.0;
/// Distance between lanes.
pub(super) const GAP: f64 = 9.0;
/// Sizes of characters.
pub(super) const LARGE: f64 = 13.0;
pub(super) const SMALL: f64 = 12.0;
/// Number of colors, which tokens use in turn.
const COLORS: usize = 6;
const LABEL: &str = "Who led under which token, what was written and what was rejected";

/// The style sheet of a picture, which a page with an element needs.
pub(crate) const STYLE: &str = "\
svg text { fill: #1f2328; font: 13px system-ui, sans-serif } svg .small { font-size: 12px; fill: #59636e } svg .on { font-size: 12px }
svg .name { font-weight: 600 } .rule { stroke: #d1d9e0 } .session { stroke: #8c959f; stroke-width: 2 } .wait { stroke: #8c959f; stroke-dasharray: 2 4 }
.c0 { fill: #b6e3ff } .c1 { fill: #aceebb } .c2 { fill: #ecd8ff } .c3 { fill: #fae17d } .c4 { fill: #ffd1cc } .c5 { fill: #c8e1e7 }
.hollow { fill: none; stroke: #818b98; stroke-width: 1.5 } .late { fill-opacity: .35; stroke: #cf222e; stroke-dasharray: 3 3 }
.written { fill: #1a7f37 } .no { stroke: #cf222e; stroke-width: 2.5; fill: none } .end { fill: #cf222e } svg .label { font-size: 12px; fill: #cf222e }
@media (prefers-color-scheme: dark) {
svg text { fill: #f0f6fc } svg .small { fill: #9198a1 } .rule { stroke: #3d444d } .session, .wait { stroke: #656c76 }
.c0 { fill: #0c4a8a } .c1 { fill: #10602a } .c2 { fill: #5a3096 } .c3 { fill: #6e4c00 } .c4 { fill: #862d25 } .c5 { fill: #2a5560 }
.hollow { stroke: #9198a1 } .late { stroke: #ff7b72 } .written { fill: #3fb950 } .no { stroke: #ff7b72 } .end { fill: #ff7b72 } svg .label { fill: #ff7b72 }
}";

/// Labels of the time axis.
pub(super) enum Axis {
    /// Time since the picture's beginning.
    Offsets,
    /// Time before the picture's end, which is now.
    Ages,
}

pub(super) struct Chart<'a> {
    pub(super) history: &'a History,
    pub(super) scale: Scale,
    pub(super) width: f64,
    axis: Axis,
    /// Index of each token, in order.
    colors: BTreeMap<i64, usize>,
    /// Signs that appear, for the legend.
    pub(super) signs: BTreeSet<Sign>,
    pub(super) svg: Svg,
}

impl<'a> Chart<'a> {
    pub(super) fn new(history: &'a History, width: f64, axis: Axis) -> Self {
        let terms = history.nodes.iter().flat_map(|it| &it.terms).map(|it| it.token);
        let highest = history.fences.iter().flat_map(|it| &it.tokens).map(|it| it.1);
        let mut colors: BTreeMap<i64, usize> = terms.chain(highest).map(|token| (token, 0)).collect();
        colors.values_mut().enumerate().for_each(|(number, color)| *color = number % COLORS);
        let scale = Scale::new((history.from, history.to), MARGIN, width - 2.0 * MARGIN);
        Chart { history, scale, width, axis, colors, signs: BTreeSet::new(), svg: Svg::default() }
    }

    /// A whole file. `left_out` events exceeded a limit.
    pub(super) fn file(mut self, left_out: usize) -> String {
        let height = self.draw(38.0, left_out);
        let (width, start) = (self.width, escaped(&self.history.started, 30));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{LABEL}\">\n\
             <style>\n{STYLE}\n</style>\n<text class=\"small\" x=\"10.0\" y=\"17.0\">from {start} UTC</text>\n{}</svg>\n",
            self.svg.content()
        )
    }

    /// An element of a page.
    pub(super) fn element(mut self, class: &str) -> String {
        let height = self.draw(17.0, 0);
        let width = self.width;
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{LABEL}\">\n{}</svg>\n",
            self.svg.content()
        )
    }

    /// Draws the picture below this baseline of the time axis, and returns its height.
    fn draw(&mut self, axis: f64, left_out: usize) -> f64 {
        let history = self.history;
        let top = axis + 10.0;
        let lanes: Vec<_> = history.nodes.iter().map(|it| self.lane(it)).collect();
        let left_out = left_out + history.without_lane + lanes.iter().map(|it| it.left_out).sum::<usize>();
        let below_nodes = top + lanes.iter().map(|it| it.height).sum::<f64>();
        #[expect(clippy::cast_precision_loss)]
        let below_fences = below_nodes + history.fences.len() as f64 * (NAME + ROW + GAP);
        self.draw_axis(axis, below_fences - GAP);
        let mut y = top;
        for lane in &lanes {
            self.draw_lane(lane, y);
            y += lane.height;
        }
        if !history.fences.is_empty() && !lanes.is_empty() {
            self.svg.rule("rule", (MARGIN, below_nodes - 5.0), (self.width - MARGIN, below_nodes - 5.0));
        }
        for fence in &history.fences {
            self.draw_fence(fence, y);
            y += NAME + ROW + GAP;
        }
        let mut bottom = self.draw_legend(below_fences + 12.0);
        if left_out > 0 {
            bottom += 18.0;
            self.svg.text("small", (MARGIN, bottom), &format!("{left_out} more events are not shown"));
        }
        bottom + MARGIN
    }

    fn draw_axis(&mut self, y: f64, bottom: f64) {
        let ticks = match self.axis {
            Axis::Offsets => self.scale.offsets(),
            Axis::Ages => self.scale.ages(),
        };
        for (at, name) in ticks {
            let (x, length) = (self.scale.x(at), width_of(&name, SMALL));
            self.svg.rule("rule", (x, y + 4.0), (x, bottom));
            // To the left of the last line if there is no space on its right.
            let is_inside = x + 3.0 + length <= self.width;
            self.svg.text("small", (if is_inside { x + 3.0 } else { x - 3.0 - length }, y), &name);
        }
    }

    fn draw_fence(&mut self, fence: &Fence, y: f64) {
        let name = self.history.name_of(fence);
        self.svg.text("", (MARGIN, y + 13.0), &fitting(&name, self.width - 2.0 * MARGIN, LARGE));
        let (y, mut until) = (y + NAME, MARGIN);
        for (place, (at, token)) in fence.tokens.iter().enumerate() {
            let end = fence.tokens.get(place + 1).map_or(self.history.to, |next| next.0);
            let (start, end) = (self.scale.x(*at), self.scale.x(end));
            if end < until + 1.0 && place + 1 < fence.tokens.len() {
                continue;
            }
            let title = format!("{name}: the highest token is {token}");
            self.bar(&self.class(*token), (start, end), y, &title);
            self.inside((start, end), y, &[format!("highest token: {token}"), token.to_string()]);
            until = end;
        }
    }

    /// The class with the token's color.
    pub(super) fn class(&self, token: i64) -> String {
        format!("c{}", self.colors.get(&token).copied().unwrap_or_default())
    }

    /// A bar at least wide enough to be seen.
    pub(super) fn bar(&mut self, class: &str, (from, to): (f64, f64), y: f64, title: &str) {
        let from = from.min(self.width - MARGIN - 1.5);
        self.svg.rect(class, (from, y), ((to - from).max(1.5), BAR), title);
    }

    /// Draws the first of these texts that fits on a bar.
    pub(super) fn inside(&mut self, (from, to): (f64, f64), y: f64, texts: &[String]) {
        if let Some(text) = texts.iter().find(|it| width_of(it, SMALL) < to - from - 8.0) {
            self.svg.text("on", (from + 5.0, y + 12.5), text);
        }
    }

    pub(super) fn x(&self, at: Micros) -> f64 {
        self.scale.x(at)
    }
}

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
