use super::history::{History, Term};
use super::*;

const SECOND: Micros = 1_000_000;

fn event(event: Kind, at: Micros) -> Event {
    Event::new(event, at * SECOND)
}

/// A candidate's line about its lease of `/e`.
fn lease(kind: Kind, at: Micros, holder: &str, token: i64) -> Event {
    let (election, holder) = (Some("/e".to_owned()), Some(holder.to_owned()));
    Event { election, holder, token: Some(token), ..event(kind, at) }
}

fn lost(at: Micros, holder: &str, token: i64, reason: &str) -> Event {
    Event { reason: Some(reason.to_owned()), ..lease(Kind::LeaseLost, at, holder, token) }
}

/// A proxy's line about a session of this client.
fn session(kind: Kind, at: Micros, session: u64, user: &str, token: i64) -> Event {
    let presented = (kind != Kind::SessionAdmitted).then_some(token);
    Event {
        session: Some(session),
        user: Some(user.to_owned()),
        resource: Some("r".to_owned()),
        token: (kind == Kind::SessionAdmitted).then_some(token),
        presented,
        ..event(kind, at)
    }
}

fn raised(at: Micros, token: i64) -> Event {
    Event { resource: Some("r".to_owned()), token: Some(token), ..event(Kind::FenceAdvanced, at) }
}

/// Parts of a term in seconds: leading, without a sign of life, and late.
fn parts(term: &Term, end: Micros) -> [Option<(Micros, Micros)>; 3] {
    let seconds = |(from, to): (Micros, Micros)| (from / SECOND, to / SECOND);
    let to = term.to.unwrap_or(end);
    let leads = term.stalled.map(|it| it.0).into_iter().chain(term.overtaken).fold(to, Micros::min);
    let late = term.overtaken.map(|at| term.stalled.map_or(at, |it| it.1)).filter(|late| *late < to);
    [Some((term.from, leads)).filter(|it| it.0 < it.1), term.stalled, late.map(|late| (late, to))]
        .map(|it| it.map(seconds))
}

fn parts_of(events: &[Event], name: &str) -> Vec<[Option<(Micros, Micros)>; 3]> {
    let history = History::new(events, None).unwrap();
    let node = history.nodes.iter().find(|it| it.name == name).unwrap();
    node.terms.iter().map(|it| parts(it, history.to)).collect()
}

/// The widest text that ends beyond the border of a picture of this width, if any.
fn beyond(picture: &str, width: f64) -> Option<&str> {
    let number = |text: &str, name: &str| -> f64 {
        text.split_once(&format!(" {name}=\"")).unwrap().1.split_once('"').unwrap().0.parse().unwrap()
    };
    picture.lines().filter(|line| line.starts_with("<text")).find(|line| {
        let text = line.split_once('>').unwrap().1.strip_suffix("</text>").unwrap();
        let size = if line.contains("class=\"\"") || line.contains("\"name\"") { 13.0 } else { 12.0 };
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        number(line, "x") < 0.0 || number(line, "x") + svg::width_of(&text, size) > width
    })
}

#[test]
fn a_stalled_leader_is_drawn_hollow_until_it_wakes() {
    let stale = |at| session(Kind::StaleWriteBlocked, at, 3, "u", 1);
    let mut events = vec![
        lease(Kind::LeaseAcquired, 0, "A", 1),
        session(Kind::SessionAdmitted, 1, 1, "u", 1),
        session(Kind::SessionEnded, 2, 1, "u", 1),
        lease(Kind::LeaseAcquired, 5, "B", 2),
        stale(7),
        stale(8),
        lost(9, "A", 1, "expired"),
        session(Kind::SessionAdmitted, 10, 2, "u", 2),
    ];
    assert_eq!(parts_of(&events, "A"), [[Some((0, 2)), Some((2, 7)), Some((7, 9))]]);
    assert_eq!(parts_of(&events, "B"), [[Some((5, 10)), None, None]]);
    let picture = file(&events, 0).unwrap();
    assert!(picture.contains("no sign of life under token 1; lost: expired"), "{picture}");
    // While its session is open, A may be writing: the log has only the first write.
    events.remove(2);
    assert_eq!(parts_of(&events, "A"), [[Some((0, 5)), Some((5, 7)), Some((7, 9))]]);
    // The leader was not paused, but could not renew its lease.
    events[6] = lost(9, "A", 1, "renewal");
    assert_eq!(parts_of(&events, "A"), [[Some((0, 5)), None, Some((5, 9))]]);
}

#[test]
fn a_stalled_leader_without_a_successor_is_drawn_hollow() {
    let events = [lease(Kind::LeaseAcquired, 0, "A", 1), lost(4, "A", 1, "expired")];
    assert_eq!(parts_of(&events, "A"), [[None, Some((0, 4)), None]]);
}

#[test]
fn the_bar_of_a_killed_leader_ends_where_it_was_killed() {
    let mut events = vec![
        lease(Kind::LeaseAcquired, 0, "A", 1),
        session(Kind::SessionAdmitted, 1, 1, "u", 1),
        session(Kind::SessionEnded, 3, 1, "u", 1),
        lease(Kind::LeaseAcquired, 6, "B", 2),
        session(Kind::SessionAdmitted, 9, 2, "u", 2),
    ];
    assert_eq!(parts_of(&events, "A"), [[Some((0, 3)), None, None]]);
    // The session is still open, so the leader is only stalled.
    events.remove(2);
    assert_eq!(parts_of(&events, "A"), [[Some((0, 6)), Some((6, 9)), None]]);
    // Only the lease is known.
    events.remove(1);
    assert_eq!(parts_of(&events, "A"), [[None, Some((0, 6)), None]]);
}

/// B got its token without `fencegate lead`, as in the guide.
#[test]
fn a_client_stops_leading_once_a_candidate_has_a_higher_token() {
    let of_election = |event: Event| Event { election: Some("/e".to_owned()), ..event };
    let events = [
        of_election(session(Kind::SessionAdmitted, 0, 1, "B", 2)),
        session(Kind::SessionEnded, 1, 1, "B", 2),
        lease(Kind::LeaseAcquired, 4, "C", 3),
        raised(8, 3),
        of_election(session(Kind::SessionAdmitted, 8, 2, "u", 3)),
        lost(9, "C", 3, "resigned"),
    ];
    assert_eq!(parts_of(&events, "B"), [[Some((0, 4)), None, None]]);
    assert_eq!(parts_of(&events, "C"), [[Some((4, 9)), None, None]]);
    assert!(file(&events, 0).unwrap().contains("<title>/e: token 2</title>"));
}

#[test]
fn a_client_that_returns_late_is_shown_as_late() {
    let events = [
        session(Kind::SessionAdmitted, 0, 1, "A", 1),
        session(Kind::SessionAdmitted, 3, 2, "B", 2),
        session(Kind::StaleWriteBlocked, 5, 1, "A", 1),
        session(Kind::StaleWriteBlocked, 7, 1, "A", 1),
        session(Kind::SessionAdmitted, 9, 3, "C", 2),
    ];
    assert_eq!(parts_of(&events, "A"), [[Some((0, 3)), Some((3, 5)), Some((5, 7))]]);
}

/// A tooltip has the times of its element.
#[test]
fn terms_are_not_drawn_longer_than_they_lasted() {
    let reset = |at, outcome: Option<&str>| Event {
        outcome: outcome.map(str::to_owned),
        resource: Some("r".to_owned()),
        token: Some(2),
        ..event(Kind::FenceReset, at)
    };
    let acquired = lease(Kind::LeaseAcquired, 0, "twice", 1);
    let events = [
        acquired.clone(),
        acquired,
        session(Kind::SessionAdmitted, 0, 7, "u7", 100),
        lost(1, "twice", 1, "deadline"),
        reset(3, Some("unknown")),
        reset(4, None),
        session(Kind::SessionAdmitted, 5, 8, "u8", 2),
    ];
    let history = History::new(&events, None).unwrap();
    let terms: Vec<_> = history.nodes.iter().flat_map(|node| &node.terms).map(|it| (it.token, it.to)).collect();
    assert_eq!(terms, [(1, Some(SECOND)), (100, Some(4 * SECOND)), (2, None)]);
    assert_eq!(history.fences[0].tokens.iter().map(|it| it.1).collect::<Vec<_>>(), [100, 2]);
}

#[test]
fn a_node_has_one_lane_with_a_row_for_each_simultaneous_term() {
    let of = |at, election: &str, token| Event {
        election: Some(election.to_owned()),
        ..lease(Kind::LeaseAcquired, at, "A", token)
    };
    let lost =
        |at, election: &str, token| Event { election: Some(election.to_owned()), ..lost(at, "A", token, "resigned") };
    let one_after_the_other =
        [of(0, "/a", 1), lost(1, "/a", 1), of(2, "/b", 2), lost(3, "/b", 2), of(4, "/c", 3), lost(5, "/c", 3)];
    let at_once = [of(0, "/a", 1), of(1, "/b", 2), lost(2, "/a", 1), lost(3, "/b", 2)];
    let tops = |events: &[Event]| {
        let picture = file(events, 0).unwrap();
        assert_eq!(picture.matches("class=\"name\"").count(), 1, "{picture}");
        let bars = picture.lines().filter(|line| line.contains("token ") && line.starts_with("<rect"));
        let tops = bars.map(|bar| bar.split(" y=\"").nth(1).unwrap().split('"').next().unwrap().to_owned());
        tops.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!([tops(&one_after_the_other), tops(&at_once)], [1, 2]);
}

#[test]
fn the_legend_lists_only_what_appears() {
    let meanings = |events: &[Event]| -> Vec<String> {
        let picture = file(events, 0).unwrap();
        let texts = [
            "leads",
            "no sign of life",
            "has not noticed",
            "waits to lead",
            "first write",
            ">session<",
            "write rejected",
            "session cut off",
        ];
        let legend: String = picture.lines().filter(|line| line.contains("class=\"small\"")).collect();
        texts.into_iter().filter(|text| legend.contains(text)).map(str::to_owned).collect()
    };
    assert_eq!(meanings(&[lease(Kind::LeaseAcquired, 0, "A", 1), lost(2, "A", 1, "resigned")]), ["leads"]);
    assert_eq!(
        meanings(&[lease(Kind::LeaseAwaited, 0, "A", 1), lease(Kind::LeaseAwaited, 2, "B", 1)]),
        ["waits to lead"]
    );
    let written = [session(Kind::SessionAdmitted, 0, 1, "u", 1), session(Kind::WriteRejected, 1, 2, "v", 1)];
    assert_eq!(meanings(&written), ["leads", "first write", "write rejected"]);
}

/// The pictures are wide and narrow, with long names and with signs at the right border.
#[test]
fn no_text_exceeds_the_border() {
    for name in ["A".to_owned(), "WM".repeat(50), "i".repeat(300), "漢".repeat(80), "<&>".repeat(40)] {
        let named = |it: Event| Event { application_name: Some(name.clone()), resource: Some(name.clone()), ..it };
        let mut events = vec![named(session(Kind::SessionAdmitted, 0, 1, "u", 1_000_000_000_000))];
        for at in 1..9 {
            events.push(named(session(Kind::SessionAdmitted, at, 2, "u", 1_000_000_000_000 + at)));
            let code = Some(name.chars().take(20).collect());
            let highest = Some(1_000_000_000_009);
            events.push(Event { code, highest, ..named(session(Kind::WriteRejected, at, 3, "u", 1_000_000_000_000)) });
        }
        assert_eq!(beyond(&file(&events, 7).unwrap(), WIDTH), None);
        for width in [1000.0, 340.0] {
            let window = (0, 9 * SECOND);
            assert_eq!(beyond(&element(&events, window, width, "").unwrap(), width), None, "{width}");
        }
    }
}

#[test]
fn fences_of_two_databases_have_different_names() {
    let of = |database: &str| Event { database: Some(database.to_owned()), ..raised(1, 7) };
    let one = file(&[of("app")], 0).unwrap();
    let both = file(&[of("app"), of("cron")], 0).unwrap();
    assert!(one.contains(">r</text>") && both.contains(">r (app)</text>") && both.contains(">r (cron)</text>"));
}

/// The leader at that time is known from events before it. Older writes are not shown.
#[test]
fn a_window_starts_with_the_leader_of_that_time() {
    let events = [
        session(Kind::SessionAdmitted, 1, 1, "old", 1),
        session(Kind::SessionAdmitted, 2, 2, "led", 2),
        session(Kind::SessionAdmitted, 150, 3, "new", 3),
    ];
    let picture = element(&events, (100 * SECOND, 200 * SECOND), 600.0, "wide").unwrap();
    assert!(picture.starts_with("<svg class=\"wide\"") && !picture.contains("<style"), "{picture}");
    for (text, count) in
        [(">old<", 0), (">led<", 1), (">new<", 1), (": admitted<", 1), (">now<", 1), ("r: token 2<", 2)]
    {
        assert_eq!(picture.matches(text).count(), count, "{text} in {picture}");
    }
    assert_eq!(element(&[], (100, 200), 600.0, ""), None);
}

/// The record has takeovers of any age, and a queue has a resource for each job.
#[test]
fn a_window_shows_the_lanes_that_changed_last() {
    let of = |at, user: &str, resource: String| Event {
        resource: Some(resource),
        ..session(Kind::SessionAdmitted, at, 1, user, at + 1)
    };
    let old = (0..100).map(|at| of(at, &format!("old {at}"), format!("job {}", at % 50)));
    let new = (0..40).map(|at| of(150 + at, &format!("new {}", at % 3), format!("job {at}")));
    let events: Vec<_> = old.chain(new).collect();
    let history = History::new(&events, Some((120 * SECOND, 200 * SECOND))).unwrap();
    let names: Vec<&str> = history.nodes.iter().map(|it| it.name.as_str()).collect();
    assert!(names.len() == 24 && names[..3].iter().all(|it| it.starts_with("new ")), "{names:?}");
    let fences: Vec<_> = history.fences.iter().map(|it| history.name_of(it)).collect();
    assert!(fences.len() == 24 && fences.contains(&"job 39".to_owned()), "{fences:?}");
}
