//! The extended protocol: its messages in the right order and in every other order, valid and damaged.

use super::session::{Step, Then};
use super::sql::{self, Scope};
use super::values;
use crate::support::message::{
    close_portal, close_statement, copy_done, copy_fail, describe_portal, describe_statement, execute, flush, parse,
    query, sync, tagged,
};
use fencegate_testing::dice::Dice;

/// One statement as drivers send it, with parameters and formats.
pub fn statement(dice: &mut Dice, scope: Scope) -> Vec<Step> {
    let (name, portal) = (*dice.pick(&["", "s1", "s2"]), *dice.pick(&["", "p1"]));
    let mut messages = Vec::new();
    if !name.is_empty() {
        messages.push(close_statement(name));
    }
    if dice.chance(40) {
        messages.extend(with_parameters(dice, name, portal));
    } else {
        messages.push(parse(name, &sql::statement(dice, scope), &[]));
        messages.push(bind(dice, portal, name, &[]));
    }
    if dice.chance(30) {
        messages.push(describe_statement(name));
    }
    messages.push(describe_portal(portal));
    let limit = *dice.pick(&[0, 0, 1, 3, 1000]);
    messages.push(execute(portal, limit));
    if limit > 0 {
        messages.push(execute(portal, limit));
        messages.push(execute(portal, 0));
    }
    messages.push(sync());
    vec![Step::new(dice, messages, Then::Until(b"Z"))]
}

/// Parse and Bind of a statement that returns its parameters. Some parameters are large.
fn with_parameters(dice: &mut Dice, name: &str, portal: &str) -> Vec<Vec<u8>> {
    if dice.chance(10) {
        let large = vec![b'p'; 1 << dice.between(10, 22)];
        let text = dice.pick(&["SELECT $1::text, length($1)", "SELECT length($1)"]);
        return vec![parse(name, text, &[]), bind(dice, portal, name, &[(0, Some(large))])];
    }
    let parameters: Vec<_> = (0..dice.between(1, 5)).map(|_| values::parameter(dice)).collect();
    let typed = dice.chance(50);
    let list = parameters.iter().enumerate().map(|(index, (type_name, ..))| match typed {
        true => format!("${}", index + 1),
        false => format!("${}::{type_name}", index + 1),
    });
    let text = format!("SELECT {}", list.collect::<Vec<_>>().join(", "));
    let oids: Vec<u32> = if typed { parameters.iter().map(|parameter| parameter.1).collect() } else { Vec::new() };
    let values: Vec<_> = parameters.into_iter().map(|(_, _, format, value)| (format, value)).collect();
    vec![parse(name, &text, &oids), bind(dice, portal, name, &values)]
}

/// The formats and numbers of values are usually right.
fn bind(dice: &mut Dice, portal: &str, name: &str, values: &[(u16, Option<Vec<u8>>)]) -> Vec<u8> {
    let mut body = [portal.as_bytes(), b"\0", name.as_bytes(), b"\0"].concat();
    let count = |count: usize| (count as u16).to_be_bytes();
    body.extend(count(values.len()));
    values.iter().for_each(|(format, _)| body.extend(format.to_be_bytes()));
    let extra = usize::from(dice.chance(4));
    body.extend(count(values.len() + extra));
    let lengths = values.iter().map(|(_, value)| value.as_deref());
    for value in lengths.chain(std::iter::repeat_n(None, extra)) {
        body.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
        body.extend(value.unwrap_or_default());
    }
    let results: &[u16] = match dice.below(20) {
        0..8 => &[],
        8..11 => &[0],
        11..17 => &[1],
        17 => &[0, 1],
        18 => &[1, 0, 1],
        _ => &[7],
    };
    body.extend(count(results.len()));
    results.iter().for_each(|format| body.extend(format.to_be_bytes()));
    tagged(b'B', &body)
}

/// Messages in any order, sent without waiting.
pub fn storm(dice: &mut Dice, scope: Scope) -> Step {
    let mut messages: Vec<Vec<u8>> = Vec::new();
    let mut bound = false;
    for _ in 0..dice.between(2, 30) {
        let message = any(dice, scope);
        match message[0] {
            b'B' if message[5] == 0 => bound = true,
            b'S' | b'Q' => bound = false,
            // After a failed simple query, executing the unnamed portal crashes the server.
            b'E' if message[5] == 0 && !bound => continue,
            _ => {}
        }
        messages.push(message);
    }
    Step::new(dice, messages, Then::Settled)
}

fn any(dice: &mut Dice, scope: Scope) -> Vec<u8> {
    let long = "n".repeat(63);
    let (longer, other) = (format!("{long}x"), format!("{long}y"));
    let names = ["", "", "s1", "s2", "never", longer.as_str(), other.as_str()];
    let name = *dice.pick(&names);
    let portal = *dice.pick(&["", "", "p1", "one", "never"]);
    match dice.below(26) {
        0..6 => parse(name, &sql::statement(dice, scope), &[]),
        6 => parse(name, "COPY work0 FROM STDIN", &[]),
        7..12 => bind(dice, portal, name, &[]),
        12..17 => execute(portal, *dice.pick(&[0, 0, 1, 2])),
        17 => describe_statement(name),
        18 => describe_portal(portal),
        19 => close_statement(name),
        20 => close_portal(portal),
        21..23 => sync(),
        23 => flush(),
        24 => query(&sql::statement(dice, scope)),
        _ => dice.pick(&[copy_done(), copy_fail("stray"), flush().repeat(5), sync().repeat(4)]).clone(),
    }
}

/// A Flush follows each message, and its answer is read before the next message.
pub fn step_by_step(dice: &mut Dice, scope: Scope) -> Vec<Step> {
    let mut steps = vec![Step::new(dice, Vec::new(), Then::Settled)];
    let query = sql::statement(dice, scope);
    let execution = Then::Until(b"sCIEG");
    let chain = [
        (parse("flushed", &query, &[]), Then::Until(b"1E")),
        (describe_statement("flushed"), Then::Until(b"TnE")),
        (bind(dice, "slow", "flushed", &[]), Then::Until(b"2E")),
        (describe_portal("slow"), Then::Until(b"TnE")),
        (execute("slow", 2), execution),
        (execute("slow", 2), execution),
        (close_portal("slow"), Then::Until(b"3E")),
        (close_statement("flushed"), Then::Until(b"3E")),
    ];
    for (message, then) in chain {
        steps.push(Step::new(dice, vec![message, flush()], then));
    }
    steps.push(Step::new(dice, Vec::new(), Then::Settled));
    steps
}

/// Messages with the right length and wrong content.
pub fn damaged(dice: &mut Dice) -> Step {
    let wrong: [(u8, &[u8]); 18] = [
        (b'Q', b""),
        (b'Q', b"SELECT 1"),
        (b'Q', b"SELECT 1\0more"),
        (b'Q', b"SELECT 1\0\0"),
        (b'P', b""),
        (b'P', b"name"),
        (b'P', b"\0SELECT 1"),
        (b'P', b"\0SELECT 1\0"),
        (b'P', b"\0SELECT 1\0\0\x02\0\0"),
        (b'P', b"\0SELECT 1\0\0\0more"),
        (b'B', b""),
        (b'B', b"\0"),
        (b'B', b"portal"),
        (b'B', b"\0\0\0\0\0\x01\x7f\xff\xff\xff\0\0"),
        (b'D', b"X\0"),
        (b'D', b""),
        (b'C', b"X\0"),
        (b'E', b"name"),
    ];
    let (tag, body) = dice.pick(&wrong);
    let before = parse("", "SELECT 1", &[]);
    Step::new(dice, vec![before, tagged(*tag, body), sync(), query("SELECT 2")], Then::Settled)
}
