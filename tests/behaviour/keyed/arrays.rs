//! Keys in arrays and long lists: `= ANY`, `IN (SELECT unnest(…))`, and INSERT from `unnest`.

use super::{holder, refused, run};
use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{Format, bind, execute, parse, sync};
use crate::support::wire::error_in;
use fencegate_fence::together::MOST_TOGETHER;
use fencegate_statement::rows::MOST_VALUES;
use std::thread;
use tokio_postgres::NoTls;

const SCHEMA: &str = "CREATE TABLE jobs (id bigint PRIMARY KEY, note text)";
const POLICIES: &str = "version: 1\nresources:\n  - {name: 'job/{id}', tables: [{name: public.jobs, key: id}]}\n";

/// OIDs of array types.
const INT2S: u32 = 1005;
const INT4S: u32 = 1007;
const INT8S: u32 = 1016;
const TEXTS: u32 = 1009;
const VARCHARS: u32 = 1015;
const UUIDS: u32 = 2951;

fn world() -> Fenced {
    Fenced::start(SCHEMA, POLICIES)
}

#[test]
fn each_key_of_an_array_needs_its_token() {
    let world = world();
    for statement in [
        "INSERT INTO jobs (id) SELECT unnest('{3,4}'::int8[])",
        "UPDATE jobs SET note = 'x' WHERE id = ANY ('{3,4,NULL}'::int8[])",
        "UPDATE jobs SET note = 'x' WHERE id = ANY (ARRAY[3, 4])",
        "UPDATE jobs SET note = 'x' WHERE id = ANY ('{4,3}')",
        "DELETE FROM jobs WHERE id IN (SELECT unnest('{3,4}'::int8[]))",
        "INSERT INTO jobs (id, note) SELECT * FROM unnest('{3,4}'::int8[], '{a,b}'::text[])",
        "DELETE FROM jobs WHERE id IN (SELECT t.x FROM unnest('{3,4}'::int8[]) AS t(x))",
        "INSERT INTO jobs (note, id) SELECT b, a FROM unnest('{3,4}'::int8[], '{a}'::text[]) AS t(a, b)",
    ] {
        for (tokens, missing) in [("job/3=1", "job/4"), ("job/4=1", "job/3")] {
            let mut wire = holder(&world, tokens);
            let error = refused(&mut wire, statement);
            assert_eq!((error.code(), error.detail()), ("LF002", &*format!("resource={missing}")), "{statement}");
        }
        ok(&mut holder(&world, "job/3=1, job/4=1"), statement);
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "2");
}

#[test]
fn arrays_that_do_not_show_their_keys_are_refused() {
    let world = world();
    world.postgres.sql("CREATE TYPE mood AS ENUM ('a')");
    let mut wire = holder(&world, "1");
    for statement in [
        "DELETE FROM jobs WHERE id = ANY ('{{3},{4}}'::int8[])",
        "DELETE FROM jobs WHERE id = ANY ('[0:1]={3,4}'::int8[])",
        "DELETE FROM jobs WHERE id = ALL ('{3}'::int8[])",
        "DELETE FROM jobs WHERE id <> ALL ('{3}'::int8[])",
        "DELETE FROM jobs WHERE NOT id = ANY ('{3}'::int8[])",
        "DELETE FROM jobs WHERE id NOT IN (SELECT unnest('{3}'::int8[]))",
        "DELETE FROM jobs WHERE id = ANY (array_append('{3}'::int8[], 4))",
        "INSERT INTO jobs (id) SELECT unnest('{3,NULL}'::int8[])",
        "INSERT INTO jobs (id, note) SELECT * FROM unnest('{3}'::int8[], '{a,b}'::text[])",
        "INSERT INTO jobs (id, note) SELECT x, y FROM unnest('{3}'::int8[], '{a,a}'::mood[]::text[]) AS t(x, y)",
        "INSERT INTO jobs (id) SELECT unnest('{3}'::int8[]) + 1",
    ] {
        assert_eq!(code(&mut wire, statement), "LF004", "{statement}");
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.epoch"), "0");
}

/// The statement is a write and needs a token, but raises no fence.
#[test]
fn an_empty_array_touches_no_key() {
    let world = world();
    for statement in ["DELETE FROM jobs WHERE id = ANY ('{}')", "INSERT INTO jobs (id) SELECT unnest('{}'::int8[])"] {
        assert_eq!(refused(&mut holder(&world, ""), statement).code(), "LF002");
        ok(&mut holder(&world, "1"), statement);
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.epoch"), "0");
}

/// Elements in the format of `array_send`.
fn binary(oid: u32, elements: &[Option<Vec<u8>>]) -> Vec<u8> {
    let has_null = u32::from(elements.iter().any(Option::is_none));
    let mut array = [1, has_null, oid, u32::try_from(elements.len()).unwrap(), 1].map(u32::to_be_bytes).concat();
    for element in elements {
        let length = element.as_ref().map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap());
        array.extend(length.to_be_bytes());
        array.extend(element.iter().flatten());
    }
    array
}

#[test]
fn bound_arrays_of_each_type() {
    const UUID: &str = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
    let uuid = u128::from_str_radix(&UUID.replace('-', ""), 16).unwrap().to_be_bytes().to_vec();
    let text = |text: &str| (Format::Text, text.as_bytes().to_vec());
    let sent = |oid, elements: &[Option<&[u8]>]| {
        let elements: Vec<_> = elements.iter().map(|element| element.map(<[u8]>::to_vec)).collect();
        (Format::Binary, binary(oid, &elements))
    };
    let of_uuid = format!("k/{UUID}");
    let cases = [
        ("smallint", "k/3", vec![(0, text("{3,NULL}")), (INT2S, sent(21, &[Some(&[0, 3]), None]))]),
        ("int", "k/3", vec![(0, sent(23, &[Some(&[0, 0, 0, 3])])), (INT4S, text("{\"3\"}")), (INT8S, text("{ 03 }"))]),
        ("bigint", "k/-1", vec![(INT8S, sent(20, &[Some(&[255; 8]), None])), (INT4S, sent(23, &[Some(&[255; 4])]))]),
        (
            "text",
            "k/a%22%2C%7B%20b",
            vec![
                (0, text(r#"{"a\",{ b"}"#)),
                (TEXTS, sent(25, &[Some(b"a\",{ b"), None])),
                (VARCHARS, text(r#"{"a\",{ b"}"#)),
            ],
        ),
        (
            "varchar(9)",
            "k/a%20b",
            vec![(0, text("{a b}")), (0, sent(25, &[Some(b"a b")])), (VARCHARS, sent(1043, &[Some(b"a b")]))],
        ),
        ("uuid", &of_uuid, vec![(UUIDS, text(&format!("{{{UUID}}}"))), (0, sent(2950, &[Some(&uuid)]))]),
    ];
    for (column, resource, arrays) in cases {
        let policies = "version: 1\nresources:\n  - {name: 'k/{k}', tables: [{name: public.t, key: k}]}\n";
        let world = Fenced::start(&format!("CREATE TABLE t (k {column}, n int)"), policies);
        for (oid, (format, array)) in arrays {
            let cast = if oid == 0 { format!("::{column}[]") } else { String::new() };
            for statement in [
                "DELETE FROM t WHERE k = ANY ($1)".to_owned(),
                format!("DELETE FROM t WHERE k IN (SELECT unnest($1{}))", cast.replace("varchar(9)", "text")),
            ] {
                for (tokens, expected) in [("other=1", "LF002"), (&*format!("{resource}=1"), "")] {
                    let answer = run(&mut holder(&world, tokens), &statement, oid, format, &array);
                    assert_eq!(answer, expected, "{column} {oid} {statement} {array:?}");
                }
            }
        }
        assert_eq!(super::epochs(&world), format!("{resource}=1"), "{column}");
    }
}

#[test]
fn bound_arrays_are_judged_each_time() {
    let world = world();
    let mut wire = holder(&world, "job/3=1, job/4=1");
    ok(&mut holder(&world, "9"), "INSERT INTO jobs VALUES (5, 'others')");
    let prepare = [parse("s", "DELETE FROM jobs WHERE id = ANY ($1)", &[]), sync()].concat();
    assert_eq!(code_in(&wire.exchange(&prepare)), "");
    let long = binary(20, &[Some(5i64.to_be_bytes().to_vec())]);
    for (format, array, expected) in [
        (Format::Text, &b"{3,4}"[..], ""),
        (Format::Text, b"{3,5}", "LF002"),
        (Format::Text, b"{}", ""),
        (Format::Text, b"{{3},{4}}", "LF004"),
        (Format::Binary, &long, "LF002"),
        (Format::Text, b"{4,3,3}", ""),
    ] {
        let run = [bind("", "s", format, &[Some(array)], Format::Text), execute("", 0), sync()];
        assert_eq!(code_in(&wire.exchange(&run.concat())), expected, "{}", array.escape_ascii());
    }
    // The server itself rejects these.
    for (format, array) in [
        (Format::Text, &b"{5"[..]),
        (Format::Binary, &long[..long.len() - 1]),
        (Format::Binary, &[&long[..], b"\0"].concat()),
    ] {
        let run = [bind("", "s", format, &[Some(array)], Format::Text), execute("", 0), sync()];
        assert_ne!(code_in(&wire.exchange(&run.concat())), "", "{}", array.escape_ascii());
    }
    // The same with SQL commands.
    ok(&mut wire, "PREPARE p(int8[]) AS DELETE FROM jobs WHERE id = ANY ($1)");
    ok(&mut wire, "EXECUTE p('{3,4}')");
    assert_eq!(refused(&mut wire, "EXECUTE p('{3,5}')").detail(), "resource=job/5");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "1");
}

/// A driver sends arrays in binary, and lets the server infer their types.
#[tokio::test]
async fn arrays_of_a_driver() {
    let world = world();
    let (host, port) = world.proxy.address().host_and_port();
    let config = format!("host={host} port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SET lease.fence = 7").await.unwrap();
    let (ids, notes) = (vec![3i64, 4, 5], vec![Some("a"), None, Some("c,\"")]);
    let insert = "INSERT INTO jobs (id, note) SELECT * FROM unnest($1::bigint[], $2::text[])";
    assert_eq!(client.execute(insert, &[&ids, &notes]).await.unwrap(), 3);
    let update = "UPDATE jobs SET note = $2 WHERE id = ANY($1)";
    assert_eq!(client.execute(update, &[&vec![Some(3i64), None, Some(4)], &"x"]).await.unwrap(), 2);
    client.batch_execute("SET lease.fence = 'job/3=7, job/4=7'").await.unwrap();
    let error = client.execute(update, &[&ids, &"y"]).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!((error.code().code(), error.detail()), ("LF002", Some("resource=job/5")));
    let short = client.execute(insert, &[&vec![8i64], &notes]).await.unwrap_err();
    assert_eq!(short.code().unwrap().code(), "LF004", "the second row would have no key");
    assert_eq!(super::epochs(&world), "job/3=7 job/4=7 job/5=7");
}

fn list(keys: impl IntoIterator<Item = usize>) -> String {
    keys.into_iter().map(|key| key.to_string()).collect::<Vec<_>>().join(",")
}

/// Number of transactions that have admitted processes.
fn admitting_transactions(world: &Fenced) -> String {
    world.postgres.value("SELECT count(DISTINCT xmin::text) || ' of ' || count(*) FROM fencegate_state.admission")
}

#[test]
fn one_stale_key_among_many_refuses_the_statement() {
    let world = world();
    ok(&mut holder(&world, "8"), "INSERT INTO jobs VALUES (57, 'eight')");
    let mut wire = holder(&world, "7");
    let keys = list(1..=100);
    for statement in [
        format!("INSERT INTO jobs (id) SELECT unnest('{{{keys}}}'::int8[])"),
        format!("UPDATE jobs SET note = 'seven' WHERE id = ANY ('{{{keys}}}')"),
        format!("DELETE FROM jobs WHERE id IN ({keys})"),
    ] {
        let error = refused(&mut wire, &statement);
        assert_eq!((error.code(), error.detail()), ("LF001", "resource=job/57 presented=7 highest=8"));
    }
    assert_eq!(world.postgres.value("SELECT string_agg(note, '') FROM jobs"), "eight");
}

#[test]
fn the_keys_of_a_statement_are_admitted_in_one_query() {
    let world = world();
    let keys = list(1..=MOST_TOGETHER);
    // The sessions stay open: the admissions of an ended process are deleted.
    let (mut first, mut second) = (holder(&world, "7"), holder(&world, "7"));
    ok(&mut first, &format!("INSERT INTO jobs (id) SELECT unnest('{{{keys}}}'::int8[])"));
    assert_eq!(admitting_transactions(&world), format!("1 of {MOST_TOGETHER}"), "first tokens");
    world.postgres.sql("DELETE FROM fencegate_state.admission");
    ok(&mut second, &format!("UPDATE jobs SET note = 'x' WHERE id = ANY ('{{{keys}}}')"));
    assert_eq!(admitting_transactions(&world), format!("1 of {MOST_TOGETHER}"), "tokens in force");
}

#[test]
fn as_many_keys_as_the_limit_pass() {
    let world = world();
    let (most, more) = (list(1..=MOST_VALUES), list(1..=MOST_VALUES + 1));
    let mut wire = holder(&world, "7");
    let mut execute_with =
        |statement: &str, keys: &str| run(&mut wire, statement, INT8S, Format::Text, format!("{{{keys}}}").as_bytes());
    assert_eq!(execute_with("INSERT INTO jobs (id) SELECT unnest($1)", &most), "");
    assert_eq!(execute_with("UPDATE jobs SET note = 'x' WHERE id = ANY ($1)", &most), "");
    assert_eq!(execute_with("UPDATE jobs SET note = 'x' WHERE id = ANY ($1)", &more), "LF004");
    assert_eq!(execute_with("INSERT INTO jobs (id) SELECT unnest($1)", &more), "LF004");
    let transactions = MOST_VALUES.div_ceil(MOST_TOGETHER);
    assert_eq!(admitting_transactions(&world), format!("{transactions} of {MOST_VALUES}"));
    // The same with keys in the text.
    ok(&mut wire, &format!("UPDATE jobs SET note = 'y' WHERE id IN ({most})"));
    let error = refused(&mut wire, &format!("DELETE FROM jobs WHERE id IN ({more})"));
    assert_eq!(error.code(), "LF004");
    assert!(error.message().contains("more than 10000 keys"), "{}", error.message());
    let rows = (1..=100).map(|id| format!("({id}, 'z')")).collect::<Vec<_>>().join(", ");
    ok(&mut wire, &format!("INSERT INTO jobs (id, note) VALUES {rows} ON CONFLICT (id) DO UPDATE SET note = 'z'"));
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs WHERE note = 'z'"), "100");
}

/// Neither session waits for a key of the other.
#[test]
fn sessions_with_the_same_keys_in_opposite_orders() {
    const KEYS: usize = 300;
    let world = world();
    thread::scope(|scope| {
        for is_reversed in [false, true] {
            let world = &world;
            scope.spawn(move || {
                for round in 0..5 {
                    let keys = round * 50..round * 50 + KEYS;
                    let keys = if is_reversed { list(keys.rev()) } else { list(keys) };
                    ok(&mut holder(world, "7"), &format!("DELETE FROM jobs WHERE id = ANY ('{{{keys}}}')"));
                }
            });
        }
    });
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.epoch WHERE token = 7 AND drained"), "500");
}

#[test]
fn a_zombie_with_a_list_is_shut_out_by_a_successor_of_one_key() {
    let world = world();
    let mut zombie = holder(&world, "7");
    let keys = list(1..=20);
    ok(&mut zombie, &format!("INSERT INTO jobs (id) SELECT unnest('{{{keys}}}'::int8[])"));
    ok(&mut zombie, "BEGIN");
    ok(&mut zombie, &format!("UPDATE jobs SET note = 'zombie' WHERE id = ANY ('{{{keys}}}')"));
    ok(&mut holder(&world, "job/5=8"), "UPDATE jobs SET note = 'successor' WHERE id = ANY ('{5}')");
    assert_eq!(code(&mut zombie, "COMMIT"), "LF001");
    assert_eq!(world.postgres.value("SELECT string_agg(DISTINCT note, ' ') FROM jobs"), "successor");
    let mut zombie = holder(&world, "7");
    let error = refused(&mut zombie, &format!("UPDATE jobs SET note = 'zombie' WHERE id = ANY ('{{{keys}}}')"));
    assert_eq!((error.code(), error.detail()), ("LF001", "resource=job/5 presented=7 highest=8"));
    ok(&mut zombie, "UPDATE jobs SET note = 'other' WHERE id = ANY ('{4,6}')");
}

/// A session that runs each statement in its own transaction does not run out of admissions.
#[test]
fn transactions_with_many_keys_follow_one_another() {
    let world = world();
    let mut wire = holder(&world, "7");
    for round in 0..3 {
        let keys = list(round * 6_000..(round + 1) * 6_000);
        ok(&mut wire, "BEGIN");
        let delete = format!("DELETE FROM jobs WHERE id = ANY ('{{{keys}}}')");
        let error = error_in(&wire.query(&delete)).map(|error| error.message().to_owned());
        assert_eq!(error, None, "{round}");
        ok(&mut wire, "COMMIT");
    }
}

/// The server chooses the best match, wherever it is in the search path.
#[test]
fn a_function_that_hides_unnest() {
    const BODY: &str = "unnest(int8[]) RETURNS SETOF int8 LANGUAGE sql AS 'SELECT 4::int8'";
    let world = world();
    world.postgres.sql(&format!("INSERT INTO jobs VALUES (3), (4); CREATE SCHEMA evil; CREATE FUNCTION evil.{BODY}"));
    let statements = [
        "DELETE FROM jobs WHERE id IN (SELECT unnest('{3}'::int8[]))",
        "DELETE FROM jobs WHERE id IN (SELECT unnest('{}'::int8[]))",
        "INSERT INTO jobs (id) SELECT unnest('{5}'::int8[]) ON CONFLICT DO NOTHING",
    ];
    let mut wire = holder(&world, "job/3=1, job/5=1");
    ok(&mut wire, "SET search_path = public, evil");
    for statement in statements {
        assert_eq!(code(&mut wire, statement), "LF004", "{statement}");
        let run = [parse("", statement, &[]), bind("", "", Format::Text, &[], Format::Text), execute("", 0), sync()];
        assert_eq!(code_in(&wire.exchange(&run.concat())), "LF004", "{statement}");
    }
    ok(&mut wire, "SET search_path = public");
    for statement in statements {
        ok(&mut wire, "BEGIN");
        ok(&mut wire, &format!("CREATE FUNCTION public.{BODY}"));
        assert_eq!(code(&mut wire, statement), "LF004", "{statement}");
        ok(&mut wire, "ROLLBACK");
        ok(&mut wire, statement);
    }
    assert_eq!(world.postgres.value("SELECT string_agg(id::text, ' ' ORDER BY id) FROM jobs"), "4 5");
}
