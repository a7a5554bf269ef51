//! Queries that return rows, over tables of many types.

use super::sql::table;
use super::values::{Type, value};
use fencegate_testing::dice::Dice;

/// Columns of the table `wide`, with their types.
const COLUMNS: [(&str, Type); 38] = {
    use Type::{Any, Bool, Int, Json, Number, Text, Time};
    [
        ("id", Int),
        ("i2", Int),
        ("i8", Int),
        ("r", Any),
        ("f", Any),
        ("n", Number),
        ("t", Text),
        ("v", Text),
        ("c", Any),
        ("b", Any),
        ("yes", Bool),
        ("j", Any),
        ("jb", Json),
        ("ia", Any),
        ("ta", Any),
        ("rng", Any),
        ("comp", Any),
        ("m", Any),
        ("ev", Int),
        ("u", Any),
        ("tz", Any),
        ("ts", Time),
        ("d", Any),
        ("ti", Any),
        ("iv", Any),
        ("bits", Any),
        ("vb", Any),
        ("ip", Any),
        ("net", Any),
        ("mac", Any),
        ("p", Any),
        ("bx", Any),
        ("mo", Any),
        ("tv", Any),
        ("tq", Any),
        ("x", Any),
        ("pairs", Any),
        ("moods", Any),
    ]
};

/// A statement that returns rows.
pub fn query(dice: &mut Dice, depth: usize) -> String {
    match dice.below(12) {
        0 => format!("VALUES ({}, {}), ({}, {})", one(dice), text(dice), one(dice), text(dice)),
        1 if depth > 0 => {
            let operator = dice.pick(&["UNION", "UNION ALL", "INTERSECT", "EXCEPT"]);
            format!(
                "(SELECT id, t FROM wide WHERE id < {}) {operator} (SELECT id, v FROM wide) ORDER BY 1, 2",
                dice.below(9)
            )
        }
        2 if depth > 0 => {
            format!("WITH q AS ({}) SELECT count(*), {} FROM q", query(dice, depth - 1), one(dice))
        }
        3 => format!(
            "WITH RECURSIVE f(n, m) AS (SELECT 1, 1::numeric UNION ALL SELECT n + 1, m * (n + 1) FROM f WHERE n < {}) SELECT * FROM f",
            dice.between(1, 60)
        ),
        4 => {
            let (key, sum) = (expression(dice, Type::Int, 1), expression(dice, Type::Number, 1));
            let grouping = dice.pick(&["1", "ROLLUP (1, yes)", "GROUPING SETS ((1), (yes), ())"]);
            format!(
                "SELECT {key} % 5, count(*), sum({sum}), string_agg(v, ',' ORDER BY id) FROM wide GROUP BY {grouping} ORDER BY 1, 2, 3, 4"
            )
        }
        5 => {
            let frame = dice.pick(&["", " ROWS 2 PRECEDING", " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"]);
            let function = dice.pick(&["row_number()", "rank()", "lag(v)", "sum(id)", "ntile(3)", "first_value(t)"]);
            format!("SELECT id, {function} OVER (PARTITION BY yes ORDER BY id{frame}) FROM wide ORDER BY id")
        }
        6 => format!("SELECT g, {} FROM generate_series(1, {}) AS g", one(dice), 1 << dice.below(13)),
        7 => {
            format!("SELECT {} FROM wide AS w ORDER BY w.id LIMIT {}", dice.pick(&["*", "w", "w.*, w"]), dice.below(41))
        }
        8 => {
            let kind = dice.pick(&["JOIN", "LEFT JOIN", "FULL JOIN", "CROSS JOIN LATERAL"]);
            let on = if kind.ends_with("LATERAL") { "" } else { " ON w.id = o.id" };
            let other = format!("(SELECT id, v FROM wide WHERE wide.id > {}) AS o{on}", dice.below(40));
            format!("SELECT w.id, o.* FROM wide AS w {kind} {other} ORDER BY 1, 2 LIMIT 50")
        }
        9 => format!("SELECT {} FROM {} ORDER BY id", dice.pick(&["*", "id", "count(*) OVER (), id"]), table(dice)),
        _ => {
            let list: Vec<String> = (0..dice.between(1, 6)).map(|_| column(dice)).collect();
            let condition = expression(dice, Type::Bool, depth);
            format!("SELECT {} FROM wide WHERE {condition} ORDER BY id", list.join(", "))
        }
    }
}

fn column(dice: &mut Dice) -> String {
    if dice.chance(60) {
        return dice.pick(&COLUMNS).0.to_owned();
    }
    let kind = any_type(dice);
    expression(dice, kind, 2)
}

fn any_type(dice: &mut Dice) -> Type {
    *dice.pick(&[Type::Int, Type::Number, Type::Text, Type::Bool, Type::Json, Type::Time, Type::Any])
}

/// An expression over the columns of `wide`.
fn expression(dice: &mut Dice, kind: Type, depth: usize) -> String {
    if depth == 0 || dice.chance(20) {
        let fitting: Vec<_> = COLUMNS.iter().filter(|column| column.1 == kind).collect();
        return if dice.chance(60) { dice.pick(&fitting).0.to_owned() } else { value(dice, kind) };
    }
    let mut part = |kind| expression(dice, kind, depth - 1);
    let mut parts = (part(kind), part(Type::Int), part(Type::Text), part(Type::Bool));
    let (same, int, text, condition) = (&mut parts.0, &parts.1, &parts.2, &parts.3);
    match (dice.below(8), kind) {
        (0, _) => format!("CASE WHEN {condition} THEN {same} ELSE {} END", value(dice, kind)),
        (1, _) => format!("coalesce({same}, {})", value(dice, kind)),
        (2, _) => format!("(SELECT {same} FROM wide AS inner_one WHERE inner_one.id = {})", dice.below(41)),
        (3, Type::Bool) => format!("id IN (SELECT {int} FROM wide)"),
        (_, Type::Int) => format!("({same} {} {int})", dice.pick(&["+", "-", "*", "/", "%", "&"])),
        (_, Type::Number) => format!("round({same} / {int}, 3)"),
        (_, Type::Text) => {
            let call =
                dice.pick(&["upper(#)", "left(#, 3)", "md5(#)", "# || 'x'", "replace(#, 'e', '€')", "lpad(#, 9)"]);
            call.replace('#', same)
        }
        (_, Type::Bool) => match dice.below(4) {
            0 => format!("({same} {} {condition})", dice.pick(&["AND", "OR"])),
            1 => format!("{text} LIKE '%{}%'", dice.below(9)),
            2 => format!("{text} IS NOT DISTINCT FROM {text}"),
            _ => format!("{int} {} {int}", dice.pick(&["<", "=", ">", "<>"])),
        },
        (_, Type::Json) => format!("jsonb_build_object('k', {same}, 'l', {int})"),
        (_, Type::Time) => format!("date_trunc('{}', {same})", dice.pick(&["hour", "month", "nonsense"])),
        (_, Type::Any) => format!("array_agg({int}) OVER ()"),
    }
}

fn one(dice: &mut Dice) -> String {
    let kind = any_type(dice);
    value(dice, kind)
}

pub fn text(dice: &mut Dice) -> String {
    value(dice, Type::Text)
}
