//! The status page: conditions that need attention, a picture of the last ten minutes, fences and their leaders,
//! sessions, and recent events, as HTML for a browser.
//!
//! Owns its appearance. It has no script, form or link. Must never write unescaped text or perform queries: callers
//! provide all data.

use super::console::{OpenSession, Rejected};
use crate::escape::escaped;
use crate::picture::{self, Event, Micros, micros};
use fencegate_fence::session::{Epoch, Token};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Maximum number of rows of a table. The page shows the number of the others.
pub const MOST_ROWS: usize = 100;
/// Maximum length of a value, in characters.
const LONGEST: usize = 80;
/// Interval at which a browser reloads the page, in seconds.
const REFRESH: u8 = 2;
/// The time that the picture shows.
const WINDOW: Duration = Duration::from_secs(600);
/// Widths of the picture on a wide page, and on a phone.
const WIDE: f64 = 900.0;
const NARROW: f64 = 344.0;

/// The page's style sheet. The Content-Security-Policy names the hashes of this one and the picture's, so browsers
/// apply no other.
const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1f2328;--dim:#59636e;--line:#d1d9e0;--bg:#fff;--good:#1a7f37;--bad:#cf222e}
@media(prefers-color-scheme:dark){:root{--fg:#f0f6fc;--dim:#9198a1;--line:#3d444d;--bg:#0d1117;--good:#3fb950;--bad:#ff7b72}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:70rem;margin:0 auto;padding:0 1rem 2rem}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}p{color:var(--dim);margin:.2rem 0}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{color:var(--dim);font-weight:500}.good{color:var(--good)}.bad{color:var(--bad)}
.attention{border-left:.3rem solid var(--bad);margin:1rem 0;padding:.1rem 0 .1rem .8rem}.attention h2{margin:.2rem 0;color:var(--bad)}
ul{margin:.2rem 0;padding-left:1.1rem}li{margin:.25rem 0;overflow-wrap:anywhere}svg{display:block;width:100%;height:auto}.wide{max-width:60rem}.narrow{display:none}
@media(max-width:40rem){thead{display:none}tr{display:block;border-bottom:1px solid var(--line);padding:.5rem 0}
td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.1rem 0;text-align:right}td::before{content:attr(data-name);color:var(--dim)}td:empty{display:none}.wide{display:none}.narrow{display:block}}";

/// The browser may only show the page, with this style sheet.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'sha256-A+/cYIK7+9euE4s9gp7b5prdy4RmA+jDkEzrKmvuPZI=' 'sha256-3HplkTEXSBWF5CWPDSmNiIm+h8pVmJpBNYE/ib10YbM='; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Contents of the page.
pub struct Status {
    /// The current time.
    pub now: SystemTime,
    /// Start time of the proxy.
    pub started: SystemTime,
    /// Why the proxy is not ready for clients; None if it is.
    pub not_ready: Option<String>,
    /// Further conditions for an operator to look at.
    pub attention: Vec<String>,
    /// True if etcd answers; None if etcd is not configured.
    pub etcd: Option<bool>,
    /// The fence of each resource in each database.
    pub fences: Vec<FenceStatus>,
    /// Events for the picture, in any order.
    pub events: Vec<Event>,
    /// Open sessions, admitted ones first.
    pub sessions: Vec<OpenSession>,
    /// Recent rejections, latest first.
    pub rejections: Vec<Arc<Rejected>>,
    /// Recently raised fences, latest first.
    pub advances: Vec<AdvanceStatus>,
}

/// A resource in a database.
pub struct FenceStatus {
    /// The database; empty if no known database has the resource.
    pub database: String,
    /// The resource, as named in its policy.
    pub resource: String,
    /// enforce or observe.
    pub mode: &'static str,
    /// The issuer of its tokens, if the policy names one.
    pub issuer: Option<String>,
    /// True for a keyed resource, which has a token for each key.
    pub is_keyed: bool,
    /// The highest token, if known.
    pub token: Option<Token>,
    /// The leader's token, if the issuer is followed. The inner None means no leader.
    pub leader: Option<Option<Token>>,
}

/// A fence that has been raised.
pub struct AdvanceStatus {
    /// Time at which the raise was noticed.
    pub time: SystemTime,
    /// The database.
    pub database: String,
    /// The resource; for a keyed one, the key's resource.
    pub resource: String,
    /// The epoch before, if it was known, and the epoch now.
    pub epochs: (Option<Epoch>, Epoch),
}

/// A row: its CSS class, and its cells.
type Row = (&'static str, Vec<String>);

/// Renders the page.
pub fn page(status: &Status) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>fencegate</title>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"refresh\" content=\"{REFRESH}\">\
         <style>{STYLE}</style><style>{}</style></head>\n<body><h1>fencegate {}</h1>\n",
        picture::STYLE,
        env!("CARGO_PKG_VERSION")
    );
    let (class, ready) = match &status.not_ready {
        None => ("good", "ready".to_owned()),
        Some(reason) => ("bad", format!("not ready: {}", escaped(reason, 500))),
    };
    let etcd = match status.etcd {
        Some(true) => ", etcd answers",
        Some(false) => ", <span class=\"bad\">etcd does not answer</span>",
        None => "",
    };
    let up = ago(status.now, status.started);
    // Writing to a String cannot fail.
    let _ = writeln!(
        html,
        "<p><span class=\"{class}\">{ready}</span>{etcd}; started {up}; sessions: {}</p>",
        status.sessions.len()
    );
    attention(&mut html, status);
    picture(&mut html, status);
    let now = status.now;
    table(
        &mut html,
        "Fences",
        &["database", "resource", "highest token", "leader", "mode"],
        status.fences.iter().map(fence),
    );
    let rejections = status.rejections.iter().map(|it| rejection(it, now));
    let names = ["when", "database", "resource", "code", "presented", "highest", "statement", "user", "session"];
    table(&mut html, "Recent rejections", &names, rejections);
    let advances = status.advances.iter().map(|it| advance(it, now));
    table(&mut html, "Recent advances", &["when", "database", "resource", "from", "to"], advances);
    let sessions = status.sessions.iter().map(|it| session(it, now));
    let names = ["session", "user", "database", "address", "application", "token", "writes to", "state"];
    table(&mut html, "Sessions", &names, sessions);
    html + "</body></html>\n"
}

/// The list of conditions for an operator to look at, unless it is empty.
fn attention(html: &mut String, status: &Status) {
    let mut items: Vec<String> = status.not_ready.iter().map(|reason| format!("not ready: {reason}")).collect();
    if status.etcd == Some(false) {
        items.push(
            "etcd does not answer: admitted sessions continue, and new leaders of elections cannot write".to_owned(),
        );
    }
    let gone_back = status.fences.iter().filter_map(|it| {
        let (leader, token) = (it.leader??, it.token?);
        let text = format!("the leader of {} has token {leader}, and the highest is {token}", it.resource);
        (leader < token).then_some(text)
    });
    items.extend(gone_back);
    items.extend(status.attention.iter().cloned());
    if items.is_empty() {
        return;
    }
    html.push_str("<section class=\"attention\"><h2>Needs attention</h2>\n<ul>\n");
    for item in items.iter().take(MOST_ROWS) {
        let _ = writeln!(html, "<li>{}</li>", escaped(item, 500));
    }
    if items.len() > MOST_ROWS {
        let _ = writeln!(html, "<li>and {} more</li>", items.len() - MOST_ROWS);
    }
    html.push_str("</ul></section>\n");
}

/// Draws the last ten minutes, once for each width of the page.
fn picture(html: &mut String, status: &Status) {
    let to = micros(status.now);
    let from = to - Micros::try_from(WINDOW.as_micros()).unwrap_or_default();
    let mut events = status.events.clone();
    events.sort_by_key(|it| it.at);
    html.push_str("<h2>The last ten minutes</h2>\n");
    let of = |width, class| picture::element(&events, (from, to), width, class);
    match (of(WIDE, "wide"), of(NARROW, "narrow")) {
        (Some(wide), Some(narrow)) => html.extend([wide, narrow]),
        _ => html.push_str("<p>none</p>\n"),
    }
}

fn fence(it: &FenceStatus) -> Row {
    let issuer = it.issuer.as_deref().unwrap_or_default();
    let (class, leader) = match (it.leader, it.token) {
        (Some(Some(leader)), Some(token)) if leader < token => ("bad", format!("token {leader}, gone back ({issuer})")),
        (Some(Some(leader)), _) => ("", format!("token {leader} ({issuer})")),
        (Some(None), _) => ("bad", format!("no leader ({issuer})")),
        (None, _) if it.issuer.is_some() && !it.is_keyed => ("", format!("unknown ({issuer})")),
        (None, _) => ("", issuer.to_owned()),
    };
    let token = if it.is_keyed { "one for each key".to_owned() } else { number(it.token) };
    (class, vec![it.database.clone(), it.resource.clone(), token, leader, it.mode.to_owned()])
}

fn rejection(it: &Rejected, now: SystemTime) -> Row {
    let statement = format!("{} {}", it.statement, it.table.as_deref().unwrap_or_default());
    let code = if it.mode == "observe" { format!("{}, observed", it.sqlstate) } else { it.sqlstate.to_owned() };
    let (resource, session) = (it.resource.clone().unwrap_or_default(), it.session.to_string());
    let (presented, highest) = (number(it.presented), number(it.highest));
    (
        "",
        vec![
            ago(now, it.time),
            it.database.clone(),
            resource,
            code,
            presented,
            highest,
            statement,
            it.user.clone(),
            session,
        ],
    )
}

fn advance(it: &AdvanceStatus, now: SystemTime) -> Row {
    let shown = |epoch: Epoch| match epoch.generation {
        1 => epoch.token.to_string(),
        generation => format!("{} (generation {generation})", epoch.token),
    };
    let (before, after) = it.epochs;
    let before = before.map_or(String::new(), shown);
    ("", vec![ago(now, it.time), it.database.clone(), it.resource.clone(), before, shown(after)])
}

fn session(it: &OpenSession, now: SystemTime) -> Row {
    let token = it.presented.clone().unwrap_or_else(|| "unknown".to_owned());
    let state = format!("{}, {}", it.state_shown(), ago(now, it.state.1));
    let (number, user, database) = (it.number.to_string(), it.user.clone(), it.database.clone());
    (
        "",
        vec![
            number,
            user,
            database,
            it.address.clone(),
            it.application_name.clone(),
            token,
            it.admitted_shown(),
            state,
        ],
    )
}

fn table(html: &mut String, title: &str, names: &[&str], rows: impl ExactSizeIterator<Item = Row>) {
    let number = rows.len();
    let _ = writeln!(html, "<h2>{title}</h2>");
    if number == 0 {
        html.push_str("<p>none</p>\n");
        return;
    }
    let heads: String = names.iter().map(|name| format!("<th>{name}</th>")).collect();
    let _ = writeln!(html, "<table><thead><tr>{heads}</tr></thead><tbody>");
    for (class, cells) in rows.take(MOST_ROWS) {
        let cell = |(name, cell): (&&str, &String)| format!("<td data-name=\"{name}\">{}</td>", escaped(cell, LONGEST));
        let cells: String = names.iter().zip(&cells).map(cell).collect();
        let _ = writeln!(html, "<tr class=\"{class}\">{cells}</tr>");
    }
    html.push_str("</tbody></table>\n");
    if number > MOST_ROWS {
        let _ = writeln!(html, "<p>and {} more</p>", number - MOST_ROWS);
    }
}

fn number(token: Option<Token>) -> String {
    token.map_or(String::new(), |token| token.to_string())
}

/// `3 s ago`.
fn ago(now: SystemTime, then: SystemTime) -> String {
    let seconds = now.duration_since(then).unwrap_or(Duration::ZERO).as_secs();
    match seconds {
        0..=119 => format!("{seconds} s ago"),
        120..=7_199 => format!("{} min ago", seconds / 60),
        7_200..=172_799 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
