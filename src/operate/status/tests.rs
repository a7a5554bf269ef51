//! The page for states that an operator must notice, and for hostile texts.

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
fn the_security_policy_contains_the_style_sheet_hashes() {
    let hash = |style: &str| format!("'sha256-{}'", base64(&Sha256::digest(style)));
    let hashes = format!("{} {}", hash(STYLE), hash(picture::STYLE));
    assert!(CONTENT_SECURITY_POLICY.contains(&hashes), "{hashes}");
}

fn status(now: SystemTime) -> Status {
    Status {
        now,
        started: now - Duration::from_secs(7300),
        not_ready: None,
        attention: Vec::new(),
        etcd: Some(true),
        fences: Vec::new(),
        events: Vec::new(),
        sessions: Vec::new(),
        rejections: Vec::new(),
        advances: Vec::new(),
    }
}

#[test]
fn the_page_begins_with_problems() {
    let fence = FenceStatus {
        database: "app".to_owned(),
        resource: "jobs".to_owned(),
        mode: "enforce",
        issuer: None,
        is_keyed: false,
        token: Some(48),
        leader: Some(Some(47)),
    };
    let now = SystemTime::now();
    let quiet = status(now);
    assert!(!page(&quiet).contains("Needs attention"));
    let html = page(&Status {
        not_ready: Some("the server is <away>".to_owned()),
        etcd: Some(false),
        fences: vec![fence],
        attention: vec!["unresolved: resource x".to_owned()],
        ..quiet
    });
    let expected = [
        "Needs attention",
        "<li>not ready: the server is &lt;away&gt;</li>",
        "<li>etcd does not answer: ",
        "<li>the leader of jobs has token 47, and the highest is 48</li>",
        "<li>unresolved: resource x</li>",
        "<h2>The last ten minutes</h2>",
        "<h2>Fences</h2>",
    ];
    let mut rest = html.as_str();
    for text in expected {
        rest = rest.split_once(text).unwrap_or_else(|| panic!("{text} in {html}")).1;
    }
}

#[test]
fn the_picture_shows_ten_minutes_wide_and_narrow() {
    let now = SystemTime::now();
    let at = |seconds| micros(now - Duration::from_secs(seconds));
    let fenced = |seconds, token| Event {
        resource: Some("jobs".to_owned()),
        token: Some(token),
        ..Event::new(picture::Kind::FenceAdvanced, at(seconds))
    };
    let late = Event {
        application_name: Some("<worker>".to_owned()),
        presented: Some(46),
        highest: Some(47),
        resource: Some("jobs".to_owned()),
        ..Event::new(picture::Kind::StaleWriteBlocked, at(10))
    };
    let html = page(&Status { events: vec![late, fenced(100, 47), fenced(7200, 46)], ..status(now) });
    for text in [
        "<svg class=\"wide\"",
        "<svg class=\"narrow\"",
        ">&lt;worker&gt;</text>",
        ">LF001: 46 &lt; 47</text>",
        "jobs: the highest token is 46",
        "jobs: the highest token is 47",
        ">now</text>",
    ] {
        assert!(html.contains(text), "{text} in {html}");
    }
    assert!(!html.contains("<script") && !html.contains(" style=") && !html.contains("http:"), "{html}");
    assert!(page(&status(now)).contains("<h2>The last ten minutes</h2>\n<p>none</p>"));
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
        not_ready: Some(evil.clone()),
        attention: vec![evil.clone(); MOST_ROWS],
        etcd: Some(false),
        fences: (0..MOST_ROWS + 3).map(fence).collect(),
        ..status(now)
    };
    let html = page(&status);
    assert!(!html.contains("<script") && !html.contains('\u{202e}') && !html.contains('\0'), "{html}");
    assert!(html.contains("not ready: &lt;script&gt;alert(&#39;&quot;&amp;&#39;)"), "{html}");
    assert_eq!(html.matches("gone back").count(), MOST_ROWS);
    assert!(html.contains("<p>and 3 more</p>") && html.contains("started 2 h ago"), "{html}");
    assert!(html.len() < 200_000);
}
