//! Literals, and parameters in both formats.

use fencegate_testing::dice::Dice;

/// The kind of an expression, as far as other expressions depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Int,
    Number,
    Text,
    Bool,
    Json,
    Time,
    /// No other expression is built from it.
    Any,
}

/// A literal.
pub fn value(dice: &mut Dice, kind: Type) -> String {
    let choices: &[&str] = match kind {
        Type::Int => &["0", "1", "7", "-3", "40", "NULL::int", "2147483647", "'12'::int"],
        Type::Number => &["0.5", "1e3", "12345.6789", "NULL::numeric", "'NaN'::numeric", "-0.0001", "7"],
        Type::Text => &[
            "'plain'",
            "''",
            "NULL::text",
            "'it''s'",
            "E'tab\\tnew\\nline'",
            "'naïve €'",
            "$q$dollar$q$",
            "'back\\slash'",
        ],
        Type::Bool => &["true", "false", "NULL::bool"],
        Type::Json => &["'{\"a\": [1, null]}'::jsonb", "'[]'::jsonb", "NULL::jsonb"],
        Type::Time => &["'2000-02-29 01:02:03'::timestamp", "'infinity'::timestamp", "NULL::timestamp"],
        Type::Any => &[
            "ARRAY[1, NULL, 3]",
            "ROW(1, 'x')",
            "'{}'::text[]",
            "int4range(1, NULL)",
            "B'101'",
            "'\\x00ff'::bytea",
            "point(1, 2)",
        ],
    };
    (*dice.pick(choices)).to_owned()
}

/// A parameter: its type, and bytes that may be a value of this type in text format, in binary format, or in neither.
pub fn parameter(dice: &mut Dice) -> (&'static str, u32, u16, Option<Vec<u8>>) {
    const PARAMETERS: [(&str, u32, &str, &[u8]); 12] = [
        ("int4", 23, "42", &[0, 0, 0, 42]),
        ("int8", 20, "-1", &[0xff; 8]),
        ("text", 25, "a text", b"a text"),
        ("bool", 16, "t", &[1]),
        ("float8", 701, "1.5", &[0x3f, 0xf8, 0, 0, 0, 0, 0, 0]),
        ("bytea", 17, "\\x0001", &[0, 1]),
        ("numeric", 1700, "12.5", &[0, 2, 0, 0, 0, 0, 0, 1, 0, 12, 0x13, 0x88]),
        ("uuid", 2950, "00112233-4455-6677-8899-aabbccddeeff", &[0x11; 16]),
        ("date", 1082, "2000-01-02", &[0, 0, 0, 1]),
        ("timestamptz", 1184, "2000-01-01 00:00:00+00", &[0; 8]),
        ("int4[]", 1007, "{1,2}", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 23]),
        ("jsonb", 3802, "{\"a\": 1}", b"\x01{\"a\": 1}"),
    ];
    let (name, oid, text, binary) = *dice.pick(&PARAMETERS);
    let format = u16::from(dice.chance(50));
    let value = match dice.below(12) {
        0 => None,
        1 => {
            let length = dice.below(9);
            Some(dice.bytes(length))
        }
        2 => Some(b"x\0y".to_vec()),
        _ if format == 1 => Some(binary.to_vec()),
        _ => Some(text.as_bytes().to_vec()),
    };
    (name, oid, format, value)
}
