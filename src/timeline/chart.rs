//! The picture: a lane per node, below them a lane per fence, and the legend.
//!
//! Owns sizes, colors and positions. Must never draw more elements than there are positions.

use super::event::Micros;
use super::history::{Fence, History, Mark, MarkKind, Node, Term};
use super::scale::Scale;
use super::svg::Svg;
use crate::escape::escaped;
use std::collections::BTreeMap;

const WIDTH: f64 = 860.0;
/// Horizontal range of the lanes. Their names are to the left.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 840.0;
const TOP: f64 = 52.0;
/// Heights in a node's lane: a row of bars per election, and below them a row of writes.
const ROW: f64 = 22.0;
const BAR: f64 = 18.0;
const WRITES: f64 = 40.0;
/// Maximum number of a node's elections with their own row.
const MOST_ROWS: usize = 8;
/// Height of a fence's lane.
const FENCE: f64 = 28.0;
/// Approximate width of a character.
const CHARACTER: f64 = 6.6;
/// Signs closer than this are merged.
const NEAR: f64 = 4.0;
/// Maximum length of a lane's name.
const LONGEST_NAME: usize = 17;
/// Maximum length of a sign's label.
const LONGEST_LABEL: usize = 40;
/// Number of colors, which tokens use in turn.
const COLORS: usize = 6;

const STYLE: &str = "\
text { fill: #1f2328; font: 13px system-ui, sans-serif } .small { font-size: 11px; fill: #59636e } .on { font-size: 11px }
.name { font-weight: 600 } .rule { stroke: #d1d9e0 } .session { stroke: #8c959f; stroke-width: 2 } .wait { stroke: #8c959f; stroke-dasharray: 2 4 }
.c0 { fill: #b6e3ff } .c1 { fill: #aceebb } .c2 { fill: #ecd8ff } .c3 { fill: #fae17d } .c4 { fill: #ffd1cc } .c5 { fill: #c8e1e7 }
.late { fill-opacity: .35; stroke: #cf222e; stroke-dasharray: 3 3 } .written { fill: #1a7f37 } .no { stroke: #cf222e; stroke-width: 2.5; fill: none } .end { fill: #cf222e }
.label { font-size: 11px; fill: #cf222e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .rule { stroke: #3d444d } .session, .wait { stroke: #656c76 }
.c0 { fill: #0c4a8a } .c1 { fill: #10602a } .c2 { fill: #5a3096 } .c3 { fill: #6e4c00 } .c4 { fill: #862d25 } .c5 { fill: #2a5560 }
.late { stroke: #ff7b72 } .written { fill: #3fb950 } .no { stroke: #ff7b72 } .end { fill: #ff7b72 } .label { fill: #ff7b72 }
}";

struct Chart<'a> {
    history: &'a History,
    scale: Scale,
    /// Index of each token, in order.
    colors: BTreeMap<i64, usize>,
    svg: Svg,
}

/// Draws the picture. `left_out` events exceed the limit.
pub(super) fn chart(history: &History, left_out: usize) -> String {
    let terms = history.nodes.iter().flat_map(|it| &it.terms).map(|it| it.token);
    let highest = history.fences.iter().flat_map(|it| &it.tokens).map(|it| it.1);
    let mut colors: BTreeMap<i64, usize> = terms.chain(highest).map(|token| (token, 0)).collect();
    colors.values_mut().enumerate().for_each(|(number, color)| *color = number % COLORS);
    let scale = Scale::new((history.from, history.to), LEFT, RIGHT - LEFT);
    let mut chart = Chart { history, scale, colors, svg: Svg::default() };
    let height = chart.draw(left_out + history.without_lane);
    let label = "Who led under which token, what was written and what was rejected";
    let (start, content) = (escaped(&history.started, 30), chart.svg.content());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">\n\
         <style>\n{STYLE}\n</style>\n<text class=\"small\" x=\"10\" y=\"20\">from {start} UTC</text>\n{content}</svg>\n"
    )
}

impl Chart<'_> {
    /// Draws the picture and returns its height.
    fn draw(&mut self, left_out: usize) -> f64 {
        let History { nodes, fences, .. } = self.history;
        let below_nodes = TOP + nodes.iter().map(height).sum::<f64>();
        #[expect(clippy::cast_precision_loss)]
        let below_fences = below_nodes + fences.len() as f64 * FENCE;
        let left_out = left_out + nodes.iter().map(|it| it.terms.len()).sum::<usize>();
        let left_out = left_out - nodes.iter().flat_map(rows).map(|(_, terms)| terms.len()).sum::<usize>();
        for (at, name) in self.scale.ticks() {
            let x = self.scale.x(at);
            self.svg.rule("rule", (x, TOP - 14.0), (x, below_fences));
            self.svg.text("small", (x + 3.0, TOP - 18.0), &name, 10);
        }
        let mut y = TOP;
        for node in nodes {
            self.node(node, y);
            y += height(node);
        }
        if !fences.is_empty() {
            self.svg.rule("rule", (10.0, below_nodes - 8.0), (RIGHT, below_nodes - 8.0));
        }
        for fence in fences {
            self.fence(fence, y);
            y += FENCE;
        }
        self.legend(below_fences + 26.0);
        if left_out > 0 {
            let text = format!("{left_out} more events are not shown");
            self.svg.text("small", (10.0, below_fences + 46.0), &text, 80);
            return below_fences + 56.0;
        }
        below_fences + 36.0
    }

    fn node(&mut self, node: &Node, y: f64) {
        self.svg.text("name", (10.0, y + 13.0), &node.name, LONGEST_NAME);
        for (from, to) in spread(&node.waits, &self.scale) {
            self.svg.rule("wait", (from, y + BAR / 2.0), (to, y + BAR / 2.0));
        }
        let mut top = y;
        for (_, terms) in rows(node) {
            let mut until = LEFT;
            for term in terms {
                until = self.term(term, top, until);
            }
            top += ROW;
        }
        let writes = y + height(node) - WRITES + ROW / 2.0;
        for (from, to) in spread(&node.sessions, &self.scale) {
            self.svg.rule("session", (from, writes), (to, writes));
        }
        let kinds = [MarkKind::Written, MarkKind::Rejected, MarkKind::CutOff];
        let mut signs: Vec<_> = kinds.into_iter().flat_map(|it| clusters(&node.marks, it, &self.scale)).collect();
        signs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut labelled = 0.0;
        for (x, marks) in signs {
            labelled = self.cluster(&marks, (x, writes), labelled);
        }
    }

    /// Draws a term from `until` on, because others cover the space before. Returns its end.
    fn term(&mut self, term: &Term, y: f64, until: f64) -> f64 {
        let Term { over, token, from, overtaken, to, reason } = term;
        let end = self.scale.x(to.unwrap_or(self.history.to));
        let lost = overtaken.map_or(end, |at| self.scale.x(at)).min(end);
        let start = self.scale.x(*from);
        if end < until + 1.0 && until > LEFT {
            return until;
        }
        let class = format!("c{}", self.colors.get(token).copied().unwrap_or_default());
        let how = reason.as_ref().map_or(String::new(), |reason| format!("; lost: {reason}"));
        self.svg.rect(&class, (start, y), ((lost - start).max(1.5), BAR), &format!("{over}: token {token}{how}"));
        if end > lost {
            let title = format!("{over}: another leads, and it still holds token {token}{how}");
            self.svg.rect(&format!("{class} late"), (lost, y), (end - lost, BAR), &title);
        }
        self.inside(
            start,
            lost - start,
            y + 13.0,
            &[format!("{over}: token {token}"), format!("token {token}"), token.to_string()],
        );
        end
    }

    /// Draws the first of these texts that fits.
    fn inside(&mut self, x: f64, width: f64, y: f64, texts: &[String]) {
        #[expect(clippy::cast_precision_loss)]
        let fits = |text: &&String| text.chars().count() as f64 * CHARACTER < width - 6.0;
        if let Some(text) = texts.iter().find(fits) {
            self.svg.text("on", (x + 5.0, y), text, 100);
        }
    }

    /// Draws one sign for merged events. Returns the end of its label.
    fn cluster(&mut self, marks: &[&Mark], (x, y): (f64, f64), labelled: f64) -> f64 {
        let [first, others @ ..] = marks else { return labelled };
        let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        let title = format!("{}{more}", first.text);
        match first.kind {
            MarkKind::Written => self.svg.rect("written", (x - 1.5, y - 7.0), (3.0, 14.0), &title),
            MarkKind::Rejected => {
                let (left, right, up, down) = (x - 5.0, x + 5.0, y - 5.0, y + 5.0);
                let cross = format!("M{left:.1} {up:.1}L{right:.1} {down:.1}M{left:.1} {down:.1}L{right:.1} {up:.1}");
                self.svg.path("no", &cross, &title);
            }
            MarkKind::CutOff => self.svg.rect("end", (x - 4.5, y - 4.5), (9.0, 9.0), &title),
        }
        let times = if others.is_empty() { String::new() } else { format!(" ×{}", marks.len()) };
        let label = format!("{}{times}", first.label);
        #[expect(clippy::cast_precision_loss)]
        let width = label.chars().count().min(LONGEST_LABEL) as f64 * CHARACTER;
        // To the left if it does not fit on the right.
        let place = if x + 9.0 + width > WIDTH { x - 9.0 - width } else { x + 9.0 };
        if first.label.is_empty() || place < labelled {
            return labelled;
        }
        self.svg.text("label", (place, y + 17.0), &label, LONGEST_LABEL);
        place + width
    }

    fn fence(&mut self, fence: &Fence, y: f64) {
        self.svg.text("", (10.0, y + 13.0), fence.name(), LONGEST_NAME);
        let mut until = LEFT;
        for (place, (at, token)) in fence.tokens.iter().enumerate() {
            let end = fence.tokens.get(place + 1).map_or(self.history.to, |next| next.0);
            let (start, end) = (self.scale.x(*at), self.scale.x(end));
            if end < until + 1.0 && place + 1 < fence.tokens.len() {
                continue;
            }
            let class = format!("c{}", self.colors.get(token).copied().unwrap_or_default());
            let title = format!("{}: the highest token is {token}", fence.name());
            self.svg.rect(&class, (start, y), ((end - start).max(1.5), BAR), &title);
            self.inside(start, end - start, y + 13.0, &[format!("highest token: {token}"), token.to_string()]);
            until = end;
        }
    }

    fn legend(&mut self, y: f64) {
        self.svg.rect("c0", (10.0, y - 9.0), (18.0, 10.0), "leads");
        self.svg.text("small", (33.0, y), "leads", 80);
        self.svg.rect("c0 late", (75.0, y - 9.0), (18.0, 10.0), "another leads");
        self.svg.text("small", (98.0, y), "has not noticed that another leads", 80);
        self.svg.rect("written", (305.0, y - 11.0), (3.0, 14.0), "written");
        self.svg.text("small", (314.0, y), "first write of a session", 80);
        self.svg.path("no", &format!("M455 {}l10 10m-10 0l10 -10", y - 9.0), "rejected");
        self.svg.text("small", (471.0, y), "write rejected", 80);
        self.svg.rect("end", (568.0, y - 9.0), (9.0, 9.0), "cut off");
        self.svg.text("small", (583.0, y), "session cut off", 80);
        self.svg.rule("wait", (682.0, y - 4.0), (702.0, y - 4.0));
        self.svg.text("small", (708.0, y), "waits to lead", 80);
    }
}

/// A node's terms by election or resource, in order of first occurrence.
fn rows(node: &Node) -> Vec<(&str, Vec<&Term>)> {
    let mut rows: Vec<(&str, Vec<&Term>)> = Vec::new();
    for term in &node.terms {
        match rows.iter().position(|it| it.0 == term.over) {
            Some(row) => rows[row].1.push(term),
            None if rows.len() < MOST_ROWS => rows.push((&term.over, vec![term])),
            None => {}
        }
    }
    rows
}

/// Height of a node's lane.
fn height(node: &Node) -> f64 {
    #[expect(clippy::cast_precision_loss)]
    let rows = rows(node).len().max(1) as f64;
    rows * ROW + WRITES
}

/// Events of the kind, grouped by position.
fn clusters<'a>(marks: &'a [Mark], kind: MarkKind, scale: &Scale) -> Vec<(f64, Vec<&'a Mark>)> {
    let mut clusters: Vec<(f64, Vec<&Mark>)> = Vec::new();
    for mark in marks.iter().filter(|it| it.kind == kind) {
        let x = scale.x(mark.at);
        match clusters.last_mut() {
            Some((place, together)) if x - *place < NEAR => together.push(mark),
            _ => clusters.push((x, vec![mark])),
        }
    }
    clusters
}

/// Positions of intervals. Overlapping or adjacent ones are merged.
fn spread(times: &[(Micros, Micros)], scale: &Scale) -> Vec<(f64, f64)> {
    let mut times = times.to_vec();
    times.sort_unstable();
    let mut spread: Vec<(f64, f64)> = Vec::new();
    for (from, to) in times {
        let (from, to) = (scale.x(from), scale.x(to));
        match spread.last_mut() {
            Some((_, end)) if from - *end < 1.0 => *end = end.max(to),
            _ => spread.push((from, to)),
        }
    }
    spread
}
