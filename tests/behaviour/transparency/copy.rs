//! COPY in all directions, formats and protocols: valid and invalid data, odd fragments, and all kinds of endings.

use super::session::{Step, Then};
use crate::support::message::{copy_data, copy_done, copy_fail, flush, query, sync, unnamed};
use fencegate_testing::dice::Dice;

pub fn conversation(dice: &mut Dice) -> Vec<Step> {
    if dice.chance(40) { vec![copy_out(dice)] } else { copy_in(dice) }
}

fn copy_out(dice: &mut Dice) -> Step {
    let source = dice.pick(&[
        "wide",
        "work0 (name, id)",
        "(SELECT id, b, t FROM wide ORDER BY id)",
        "(SELECT g, repeat('x', g) FROM generate_series(1, 2000) AS g)",
        "(SELECT 1 / (20 - g) FROM generate_series(1, 30) AS g)",
        "seen",
    ]);
    let options = dice.pick(&[
        "",
        " (FORMAT csv, HEADER, FORCE_QUOTE *)",
        " (FORMAT binary)",
        " (DELIMITER ';', NULL 'null')",
        " CSV BINARY",
    ]);
    let copy = format!("COPY {source} TO STDOUT{options}");
    match dice.below(3) {
        0 => Step::new(dice, vec![query(&copy)], Then::Until(b"Z")),
        1 => Step::new(dice, vec![query(&format!("SELECT 1; {copy}; SELECT 2"))], Then::Until(b"Z")),
        _ => Step::new(dice, vec![unnamed(&copy, &[]), sync()], Then::Until(b"Z")),
    }
}

fn copy_in(dice: &mut Dice) -> Vec<Step> {
    let table = *dice.pick(&["work0", "work0", "ledger", "ledger (id, who)", "no_such_table"]);
    let (options, data) = data(dice);
    let copy = format!("COPY {table} FROM STDIN{options}");
    let mut stream: Vec<Vec<u8>> = Vec::new();
    let size = *dice.pick(&[1, 7, 100, 5000, 100_000]);
    stream.extend(data.chunks(size).take(3000).map(copy_data));
    if dice.chance(10) {
        stream.insert(0, copy_data(b""));
    }
    stream.push(match dice.below(6) {
        0 => copy_fail("changed its mind"),
        1 => query("SELECT 'in place of the end'"),
        2 => [flush(), copy_done()].concat(),
        _ => copy_done(),
    });
    let start = match dice.below(3) {
        0 => query(&copy),
        1 => query(&format!("SELECT 1; {copy}; SELECT 2")),
        _ => [unnamed(&copy, &[]), flush()].concat(),
    };
    if dice.chance(50) {
        // Like libpq, the client sends data only when the server requests it.
        let asked = if start[0] == b'Q' { Then::Until(b"GZ") } else { Then::Until(b"GE") };
        return vec![Step::new(dice, vec![start], asked), Step::new(dice, stream, Then::Settled)];
    }
    stream.insert(0, start);
    vec![Step::new(dice, stream, Then::Settled)]
}

/// Options of a COPY, and its data.
fn data(dice: &mut Dice) -> (&'static str, Vec<u8>) {
    let first = dice.between(1000, 2000);
    let count = 1 << dice.below(12);
    let row = |number: usize, between: &str| format!("{}{between}name {number}{between}{number}\n", first + number);
    let mut rows: Vec<String> = Vec::new();
    let options = match dice.below(4) {
        0 => {
            rows.extend((0..count).map(|number| row(number, ",")));
            " (FORMAT csv)"
        }
        1 => {
            let values: &[u8] =
                b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\x0b\xb8\0\0\0\x01x\xff\xff\xff\xff\xff\xff";
            let cut = if dice.chance(70) { values.len() } else { dice.below(values.len()) };
            return (" (FORMAT binary)", values[..cut].to_vec());
        }
        _ => {
            rows.extend((0..count).map(|number| row(number, "\t")));
            ""
        }
    };
    if dice.chance(30) {
        let wrong = ["x\ty\tz\n", "1\n", "\\.\n", "\"open\n", "5\tn\t-1\n", "\\N\t\\N\t\\N\n", "6\tzero\0byte\t6\n"];
        let place = dice.below(rows.len() + 1);
        rows.insert(place, (*dice.pick(&wrong)).to_owned());
    }
    (options, rows.concat().into_bytes())
}
