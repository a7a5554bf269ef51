//! The status page: fences and their leaders, sessions, and recent events, as HTML for a browser.
//!
//! Owns its appearance. It has no script, form or link. Must never write unescaped text or perform queries: callers
//! provide all data.

use super::console::{OpenSession, Rejected};
use crate::escape::escaped;
use fencegate_fence::session::{Epoch, Token};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The most rows of a table; of further ones the number is shown.
pub const MOST_ROWS: usize = 100;
/// The most characters of a value.
const LONGEST: usize = 80;
/// After so many seconds a browser asks again.
const REFRESH: u8 = 2;

/// The style sheet: the policy names its hash, so that no other counts.
const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1f2328;--dim:#59636e;--line:#d1d9e0;--bg:#fff;--good:#1a7f37;--bad:#cf222e}
@media(prefers-color-scheme:dark){:root{--fg:#f0f6fc;--dim:#9198a1;--line:#3d444d;--bg:#0d1117;--good:#3fb950;--bad:#ff7b72}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:70rem;margin:0 auto;padding:0 1rem 2rem}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}p{color:var(--dim);margin:.2rem 0}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{color:var(--dim);font-weight:500}.good{color:var(--good)}.bad{color:var(--bad)}
@media(max-width:40rem){thead{display:none}tr{display:block;border-bottom:1px solid var(--line);padding:.5rem 0}
td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.1rem 0;text-align:right}td::before{content:attr(data-name);color:var(--dim)}td:empty{display:none}}";

/// The browser may only show the page, with this style sheet.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'sha256-3xvMoXP/2qwAWnzCi7uoQm8B/86cTVJlOIiF7P9Ek/Q='; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Contents of the page.
pub struct Status {
    /// Now.
    pub now: SystemTime,
    /// When the proxy started.
    pub started: SystemTime,
    /// Why the proxy is not ready for clients; None if it is.
    pub not_ready: Option<String>,
    /// etcd answers; None where none is set.
    pub etcd: Option<bool>,
    /// The fence of each resource in each database.
    pub fences: Vec<FenceStatus>,
    /// Those that write first.
    pub sessions: Vec<OpenSession>,
    /// The latest first.
    pub rejections: Vec<Arc<Rejected>>,
    /// The latest first.
    pub advances: Vec<AdvanceStatus>,
}

/// A resource in a database.
pub struct FenceStatus {
    /// The database; empty where none is known to have the resource.
    pub database: String,
    /// The resource, as its policy names it.
    pub resource: String,
    /// enforce or observe.
    pub mode: &'static str,
    /// Where its tokens come from, where the policy says it.
    pub issuer: Option<String>,
    /// It has a token for each key.
    pub is_keyed: bool,
    /// The highest token, as far as it is known.
    pub token: Option<Token>,
    /// The leader's token, if the issuer is followed. The inner None means no leader.
    pub leader: Option<Option<Token>>,
}

/// A fence that has been raised.
pub struct AdvanceStatus {
    /// When that was noticed.
    pub time: SystemTime,
    /// The database.
    pub database: String,
    /// The resource; of a keyed one that of the key.
    pub resource: String,
    /// The epoch before, if it was known, and the epoch now.
    pub epochs: (Option<Epoch>, Epoch),
}

/// A row: a class for its looks, and its cells.
type Row = (&'static str, Vec<String>);

/// The page.
pub fn page(status: &Status) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>fencegate</title>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"refresh\" content=\"{REFRESH}\">\
         <style>{STYLE}</style></head>\n<body><h1>fencegate {}</h1>\n",
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
    // A String takes everything.
    let _ = writeln!(
        html,
        "<p><span class=\"{class}\">{ready}</span>{etcd}; started {up}; sessions: {}</p>",
        status.sessions.len()
    );
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

fn fence(it: &FenceStatus) -> Row {
    let issuer = it.issuer.as_deref().unwrap_or_default();
    let (class, leader) = match (it.leader, it.token) {
        (Some(Some(leader)), Some(token)) if leader < token => ("bad", format!("token {leader}, gone back ({issuer})")),
        (Some(Some(leader)), _) => ("", format!("token {leader} ({issuer})")),
        (Some(None), _) => ("bad", format!("nobody ({issuer})")),
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
    let token = it.presented.clone().unwrap_or_else(|| "to be asked".to_owned());
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
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let of_three = |three: &[u8]| {
            let bits = (0..3).fold(0, |bits, place| bits << 8 | u32::from(*three.get(place).unwrap_or(&0)));
            let digit = |place: usize| char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]);
            (0..4).map(|place| if place <= three.len() { digit(place) } else { '=' }).collect::<String>()
        };
        bytes.chunks(3).map(of_three).collect()
    }

    #[test]
    fn the_policy_names_the_style_sheet() {
        let hash = format!("'sha256-{}'", base64(&Sha256::digest(STYLE)));
        assert!(CONTENT_SECURITY_POLICY.contains(&hash), "{hash}");
    }

    #[test]
    fn shown_text_is_escaped_truncated_and_counted() {
        let (now, evil) = (SystemTime::now(), "<script>alert('\"&')</script>\u{202e}\0".to_owned());
        let fence = |_| FenceStatus {
            database: evil.clone(),
            resource: evil.repeat(20),
            mode: "enforce",
            issuer: Some(evil.clone()),
            is_keyed: false,
            token: Some(48),
            leader: Some(Some(47)),
        };
        let status = Status {
            now,
            started: now - Duration::from_secs(7300),
            not_ready: Some(evil.clone()),
            etcd: Some(false),
            fences: (0..MOST_ROWS + 3).map(fence).collect(),
            sessions: Vec::new(),
            rejections: Vec::new(),
            advances: Vec::new(),
        };
        let html = page(&status);
        assert!(!html.contains("<script") && !html.contains('\u{202e}') && !html.contains('\0'), "{html}");
        assert!(html.contains("not ready: &lt;script&gt;alert(&#39;&quot;&amp;&#39;)"), "{html}");
        assert_eq!(html.matches("gone back").count(), MOST_ROWS);
        assert!(html.contains("<p>and 3 more</p>") && html.contains("started 2 h ago"), "{html}");
        assert!(html.len() < 200_000);
    }
}
