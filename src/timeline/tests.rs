use super::*;
use proptest::prelude::*;
use std::fmt::Write;

/// A log line with these fields, this many milliseconds after the first.
fn line(milliseconds: u32, event: &str, fields: &str) -> String {
    let (seconds, milliseconds) = (milliseconds / 1000, milliseconds % 1000);
    let timestamp = format!("2026-01-31T12:00:{seconds:02}.{milliseconds:03}Z");
    format!("{{\"timestamp\":\"{timestamp}\",\"level\":\"INFO\",\"event\":\"{event}\",{fields}}}\n")
}

fn picture(log: &str) -> Option<String> {
    let mut events = Events::default();
    events.read(log.as_bytes()).unwrap();
    draw(events)
}

/// A leads and pauses; B takes over; A writes.
fn takeover() -> String {
    let lease = |holder: &str, token: u8| format!(r#""election":"/e","holder":"{holder}","token":{token}"#);
    let write = |field: &str, token: u8| {
        format!(
            r#""session":{token},"address":"unix","database":"app","resource":"r","election":"/e","{field}":{token}"#
        )
    };
    [
        line(0, "lease_acquired", &lease("A", 41)),
        line(100, "fence_advanced", r#""database":"app","resource":"r","token":41"#),
        line(100, "session_admitted", &(write("token", 41) + r#","statement":"UPDATE""#)),
        line(200, "lease_awaited", r#""election":"/e","holder":"B","leader":"A","leader_token":41"#),
        line(900, "lease_acquired", &lease("B", 42)),
        line(950, "fence_advanced", r#""database":"app","resource":"r","token":42"#),
        line(950, "session_admitted", &write("token", 42)),
        line(1000, "session_cut_off", &(write("presented", 41) + r#","highest":42,"outcome":"rolled_back""#)),
        line(1200, "stale_write_blocked", &(write("presented", 41) + r#","highest":42,"statement":"UPDATE""#)),
        line(1500, "lease_lost", &(lease("A", 41) + r#","reason":"superseded""#)),
    ]
    .concat()
}

#[test]
fn a_takeover_is_drawn() {
    let picture = picture(&takeover()).unwrap();
    let expected = [
        "from 2026-01-31 12:00:00 UTC",
        r#"class="name" x="10.0" y="61.0">A</text>"#,
        "<title>/e: token 41; lost: superseded</title>",
        "<title>/e: another leads, and it still holds token 41; lost: superseded</title>",
        "<title>UPDATE, r, token 41: admitted</title>",
        "<title>LF001: UPDATE, r, token 41: the highest is 42</title>",
        "<title>cut off, r, token 41: the highest is 42; outcome=rolled_back</title>",
        "cut off: 41 &lt; 42",
        "<title>/e: token 42</title>",
        "<title>r: the highest token is 42</title>",
    ];
    let missing: Vec<_> = expected.into_iter().filter(|it| !picture.contains(it)).collect();
    assert!(missing.is_empty(), "{missing:#?} in {picture}");
    // B is the only other node: a token's holder is known from its lease.
    assert_eq!(picture.matches(r#"class="name""#).count(), 2, "{picture}");
}

#[test]
fn line_order_and_other_lines_do_not_matter() {
    let log = takeover();
    let mut reversed: Vec<&str> = log.lines().rev().collect();
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(100_000));
    for (place, noise) in [
        "",
        "2026-01-31 12:00:00 UTC [7] LOG:  database system is ready",
        r#"{"level":"info","ts":"2026-01-31T12:00:00.000Z","msg":"etcd"}"#,
        r#"{"timestamp":"2026-01-31T12:00:00Z","event":"listening"}"#,
        r#"{"timestamp":"then","event":"lease_acquired","election":"/x","holder":"X","token":1}"#,
        r#"{"timestamp":"2026-01-31T12:00:00Z","event":"lease_acquired","election":"/x","holder":"X","token":"1"}"#,
        &long,
    ]
    .into_iter()
    .enumerate()
    {
        reversed.insert(place, noise);
    }
    // Simultaneous events keep their order.
    assert_eq!(picture(&reversed.join("\n")).unwrap().len(), picture(&log).unwrap().len());
}

#[test]
fn clients_without_candidacy_lead_while_their_token_is_the_highest() {
    let write = |token: u8, name: &str, address: &str| {
        format!(
            r#""session":{token},"address":"{address}","application_name":"{name}","database":"app","resource":"r","token":{token}"#
        )
    };
    let picture = picture(
        &[
            line(0, "session_admitted", &write(7, "cron", "10.0.0.1:5000")),
            line(500, "fence_advanced", r#""database":"app","resource":"r","token":8"#),
            line(500, "session_admitted", &write(8, "cron", "10.0.0.2:5000")),
            line(1000, "session_admitted", &write(8, "cron", "127.0.0.1:5000")),
        ]
        .concat(),
    )
    .unwrap();
    for name in [
        ">cron 10.0.0.1</text>",
        ">cron 10.0.0.2</text>",
        ">cron</text>",
        "<title>r: token 7</title>",
        "r: the highest token is 8",
    ] {
        assert!(picture.contains(name), "{name} in {picture}");
    }
}

#[test]
fn an_empty_log_has_no_picture() {
    assert_eq!(picture(""), None);
    assert_eq!(picture(&line(0, "session_ended", r#""session":1"#)), None);
}

/// A proxy logs the end of each session, even of sessions that have not written.
#[test]
fn sessions_without_writes_displace_no_other() {
    let ended = |session: usize| line(0, "session_ended", &format!(r#""session":{session}"#));
    let mut log: String = (0..MOST_EVENTS).map(ended).collect();
    log += &line(1, "session_admitted", r#""session":1,"user":"writer","resource":"r","token":7"#);
    assert!(picture(&log).unwrap().contains("writer"));
}

#[test]
fn the_picture_has_a_limited_size() {
    let mut log = String::new();
    for number in 0..MOST_EVENTS + 10 {
        let node = number % 100;
        let lease = format!(r#""election":"/e/{}","holder":"node {node}","token":{number}"#, number % 7);
        let at = u32::try_from(number % 60_000).unwrap();
        let write = format!(r#""session":{number},"resource":"r{node}","token":{number},"highest":7"#);
        let event =
            ["lease_acquired", "session_admitted", "fence_advanced", "session_ended", "write_rejected"][number % 5];
        log += &line(at, event, if number % 5 == 0 { &lease } else { &write });
    }
    let picture = picture(&log).unwrap();
    assert!(picture.len() < 4_000_000, "{}", picture.len());
    assert!(picture.contains("more events are not shown"));
}

/// Texts contain no raw `<` or `&`: these occur only in the SVG's own elements and references.
fn assert_well_formed(picture: &str) {
    let is_ours = |rest: &&str| {
        let names = [
            "svg ", "/svg>", "style>", "/style>", "text ", "/text>", "title>", "/title>", "rect ", "/rect>", "line ",
            "path ", "/path>",
        ];
        names.iter().any(|name| rest.starts_with(name))
    };
    let wrong: Vec<&str> = picture.split('<').skip(1).filter(|rest| !is_ours(rest)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let references = ["amp;", "lt;", "gt;", "quot;", "#39;"];
    assert!(picture.split('&').skip(1).all(|rest| references.iter().any(|it| rest.starts_with(it))), "{picture}");
    assert!(picture.chars().all(|c| c == '\n' || !c.is_control()), "{picture}");
}

proptest! {
    #[test]
    fn input_is_escaped_in_the_picture(texts in prop::collection::vec("[<>&'\"\\]\\[ -~\u{0}-\u{1f}\u{202e}äß]{0,40}", 6)) {
        let [name, over, resource, code, database, at]: [String; 6] =
            texts.iter().map(|it| serde_json::to_string(it).unwrap()).collect::<Vec<_>>().try_into().unwrap();
        let mut log = String::new();
        for event in ["lease_acquired", "lease_awaited", "session_admitted", "session_cut_off", "write_rejected", "fence_advanced"] {
            let fields = format!(
                "\"election\":{over},\"holder\":{name},\"token\":7,\"presented\":7,\"highest\":8,\"resource\":{resource},\
                 \"application_name\":{name},\"database\":{database},\"code\":{code},\"statement\":{code},\"outcome\":{code},\"address\":{at}"
            );
            log.write_str(&line(1, event, &fields)).unwrap();
        }
        assert_well_formed(&picture(&log).unwrap());
    }

    #[test]
    fn any_log_yields_a_well_formed_picture(
        kinds in prop::collection::vec(0..10_usize, 1..20),
        numbers in prop::collection::vec(any::<i64>(), 20),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let names = [
            "lease_awaited", "lease_acquired", "lease_lost", "session_admitted", "session_ended", "session_cut_off",
            "stale_write_blocked", "write_rejected", "fence_advanced", "fence_reset",
        ];
        let mut log = noise;
        for (kind, number) in kinds.iter().zip(&numbers) {
            let year = 1970 + number.rem_euclid(8030);
            let fields = format!(
                "\"timestamp\":\"{year}-12-31T23:59:60Z\",\"event\":\"{}\",\"election\":\"e\",\"holder\":\"{}\",\"token\":{number},\
                 \"presented\":{number},\"highest\":{number},\"resource\":\"r\"",
                names[*kind], number % 3
            );
            log.extend(format!("\n{{{fields}}}").bytes());
        }
        let mut events = Events::default();
        events.read(&log[..]).unwrap();
        draw(events).into_iter().for_each(|picture| assert_well_formed(&picture));
    }
}

#[test]
fn timestamps_follow_the_calendar() {
    let seconds = |timestamp| micros(timestamp).map(|it| it / 1_000_000);
    assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
    assert_eq!(seconds("2000-02-29T12:34:56.789Z"), Some(951_827_696));
    assert_eq!(seconds("2026-11-23T18:15:20.5Z"), Some(1_795_457_720));
    assert_eq!(micros("1970-01-01T00:00:01.0000015Z"), Some(1_000_001));
    let wrong = ["", "Z", "T", "2026-11-23", "2026-13-01T00:00:00Z", "2026-11-23T24:00:00Z", "+026-11-23T00:00:00Z"];
    for timestamp in wrong.into_iter().chain(["2026-11-23T18:15:20", "2026-11-23T18:15:20.-5Z"]) {
        assert_eq!(micros(timestamp), None, "{timestamp}");
    }
}
