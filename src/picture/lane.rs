//! A node's lane: its name, its terms as bars, and below them the signs of its writes.

use super::chart::{BAR, Chart, GAP, LARGE, MARGIN, NAME, ROW, SMALL, Sign};
use super::event::Micros;
use super::history::{Mark, MarkKind, Node, Term};
use super::svg::{Scale, fitting, width_of};

/// Maximum number of rows for terms at the same time.
const MOST_ROWS: usize = 8;
/// Heights of the signs, and of their labels.
const SIGNS: f64 = 17.0;
const LABELS: f64 = 13.0;
/// Signs closer than this are merged.
const NEAR: f64 = 4.0;
/// Maximum width of a sign's label.
const WIDEST_LABEL: f64 = 240.0;

/// A node's lane before it is drawn.
pub(super) struct Lane<'a> {
    node: &'a Node,
    /// Terms that do not overlap share a row.
    rows: Vec<Vec<&'a Term>>,
    signs: Vec<(f64, Vec<&'a Mark>)>,
    /// Number of terms without a row.
    pub(super) left_out: usize,
    pub(super) height: f64,
}

impl<'a> Chart<'a> {
    pub(super) fn lane(&self, node: &'a Node) -> Lane<'a> {
        let (rows, left_out) = rows(node, self.history.to);
        let kinds = [MarkKind::Written, MarkKind::Rejected, MarkKind::CutOff];
        let mut signs: Vec<_> = kinds.into_iter().flat_map(|it| clusters(&node.marks, it, &self.scale)).collect();
        signs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let has_labels = node.marks.iter().any(|it| !it.label.is_empty());
        let is_waiting = rows.is_empty() && !node.waits.is_empty();
        #[expect(clippy::cast_precision_loss)]
        let bars = rows.len().max(usize::from(is_waiting)) as f64 * ROW;
        let below = if signs.is_empty() && node.sessions.is_empty() { 0.0 } else { SIGNS };
        let height = NAME + bars + below + if has_labels { LABELS } else { 0.0 } + GAP;
        Lane { node, rows, signs, left_out, height }
    }

    pub(super) fn draw_lane(&mut self, lane: &Lane, y: f64) {
        let node = lane.node;
        self.svg.text("name", (MARGIN, y + 13.0), &fitting(&node.name, self.width - 2.0 * MARGIN, LARGE));
        let mut top = y + NAME;
        for (from, to) in spread(&node.waits, &self.scale) {
            self.signs.insert(Sign::Wait);
            self.svg.rule("wait", (from, top + BAR / 2.0), (to, top + BAR / 2.0));
        }
        for terms in &lane.rows {
            let mut until = MARGIN;
            for term in terms {
                until = self.term(term, top, until);
            }
            top += ROW;
        }
        let writes = top + SIGNS / 2.0;
        for (from, to) in spread(&node.sessions, &self.scale) {
            self.signs.insert(Sign::Session);
            self.svg.rule("session", (from, writes), (to, writes));
        }
        let mut labelled = 0.0;
        for (x, marks) in &lane.signs {
            labelled = self.cluster(marks, (*x, writes), labelled);
        }
    }

    /// Draws a term unless others cover its space up to `until`. Returns its end.
    fn term(&mut self, term: &Term, y: f64, until: f64) -> f64 {
        let Term { over, token, from, stalled, overtaken, to, reason, .. } = term;
        let end = to.unwrap_or(self.history.to);
        let (start, right) = (self.x(*from), self.x(end));
        if right < until + 1.0 && until > MARGIN {
            return until;
        }
        let class = self.class(*token);
        let how = reason.as_ref().map_or(String::new(), |reason| format!("; lost: {reason}"));
        let leads = stalled.map(|it| it.0).into_iter().chain(*overtaken).fold(end, Micros::min);
        if leads > *from || stalled.is_none() {
            let leads = (start, self.x(leads));
            self.signs.insert(Sign::Leads);
            self.bar(&class, leads, y, &format!("{over}: token {token}{how}"));
            let texts = [format!("{over}: token {token}"), format!("token {token}"), token.to_string()];
            self.inside(leads, y, &texts);
        }
        if let Some((from, to)) = *stalled {
            let silent = (self.x(from), self.x(to));
            self.signs.insert(Sign::Stalled);
            self.bar("hollow", silent, y, &format!("{over}: no sign of life under token {token}{how}"));
            self.inside(silent, y, &["no sign of life".to_owned(), "stalled".to_owned()]);
        }
        let late = overtaken.map(|at| stalled.map_or(at, |it| it.1.max(at))).filter(|late| *late < end);
        let is_back = stalled.is_some_and(|it| it.1 == end && to.is_some() && term.resource.is_some());
        if let Some(late) = late.or(is_back.then_some(end)) {
            self.signs.insert(Sign::Late);
            let title = format!("{over}: another leads, and it still holds token {token}{how}");
            self.bar(&format!("{class} late"), (self.x(late), right), y, &title);
        }
        right
    }

    /// Draws one sign for merged events. Returns the end of its label.
    fn cluster(&mut self, marks: &[&Mark], (x, y): (f64, f64), labelled: f64) -> f64 {
        let [first, others @ ..] = marks else { return labelled };
        let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        let title = format!("{}{more}", first.text);
        match first.kind {
            MarkKind::Written => self.sign(Sign::Written, (x, y), &title),
            MarkKind::Rejected => self.sign(Sign::Rejected, (x, y), &title),
            MarkKind::CutOff => self.sign(Sign::CutOff, (x, y), &title),
        }
        let times = if others.is_empty() { String::new() } else { format!(" ×{}", marks.len()) };
        let label = fitting(&format!("{}{times}", first.label), WIDEST_LABEL.min(self.width - 2.0 * MARGIN), SMALL);
        let width = width_of(&label, SMALL);
        // To the left if it does not fit on the right.
        let is_inside = x + 9.0 + width <= self.width;
        let place = if is_inside { x + 9.0 } else { (self.width - MARGIN - width).min(x - 9.0).max(MARGIN) };
        if first.label.is_empty() || place < labelled {
            return labelled;
        }
        self.svg.text("label", (place, y + 18.0), &label);
        place + width + 6.0
    }
}

/// A node's terms in rows, and the number of terms without a row.
fn rows(node: &Node, end: Micros) -> (Vec<Vec<&Term>>, usize) {
    let mut rows: Vec<(Micros, Vec<&Term>)> = Vec::new();
    let mut left_out = 0;
    for term in &node.terms {
        let to = term.to.unwrap_or(end);
        match rows.iter().position(|(until, _)| *until <= term.from) {
            Some(place) => {
                rows[place].0 = to;
                rows[place].1.push(term);
            }
            None if rows.len() < MOST_ROWS => rows.push((to, vec![term])),
            None => left_out += 1,
        }
    }
    (rows.into_iter().map(|(_, row)| row).collect(), left_out)
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
