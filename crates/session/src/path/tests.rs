use super::*;

fn schemas(text: &str) -> Vec<String> {
    match SearchPath::read(Some(text)) {
        SearchPath::Schemas(schemas) => schemas.to_vec(),
        other => vec![format!("{other:?}")],
    }
}

#[test]
fn a_path_is_read_as_the_server_reads_it() {
    for (text, expected) in [
        ("tenant_a", vec!["tenant_a"]),
        (" Tenant_A ,\tpublic ", vec!["tenant_a", "public"]),
        ("\"Tenant A\", \"say \"\"hi\"\"\"", vec!["Tenant A", "say \"hi\""]),
        ("a\"b", vec!["a\"b"]),
        ("", vec![]),
        ("\"\"", vec![""]),
        ("\"pg_temp\", x", vec!["pg_temp", "x"]),
    ] {
        assert_eq!(schemas(text), expected, "{text}");
    }
    assert_eq!(schemas(&"A".repeat(70)), ["a".repeat(63)]);
}

/// An element that may mean another schema stands for every schema.
#[test]
fn an_unclear_path_means_every_schema() {
    let long = ["s"; MOST_SCHEMAS + 1].join(", ");
    for text in ["\"$user\", public", "$user", "$USER", "été", "\"a", "a b", "a,", ",a", &long] {
        assert!(matches!(SearchPath::read(Some(text)), SearchPath::Any(_)), "{text}");
    }
    assert!(matches!(SearchPath::read(None), SearchPath::Any(_)));
    // In quotes, only "$user" means the role.
    assert_eq!(schemas("\"$USER\""), ["$USER"]);
}

/// Even if the proxy cannot read a path as the server does, it determines whether fencegate's schemas may be in it.
#[test]
fn fencegates_own_schemas_in_a_path_are_recognized() {
    use OwnSchemas::{Absent, AsRole, Possible};
    let long = |last: &str| "s, ".repeat(MOST_SCHEMAS) + last;
    for (text, expected) in [
        ("public", Absent),
        ("\"$user\", public", AsRole),
        ("\"$USER\", public", Absent),
        ("\"$user\", fencegate", Possible),
        ("public, FenceGate", Possible),
        ("\"fencegate_state\"", Possible),
        ("\"FENCEGATE\", fencegates", Absent),
        ("\"Größe\", public", Absent),
        ("\"Größe\", \"$user\"", AsRole),
        ("\"Größe\", Fencegate", Possible),
        ("a b", Absent),
        (&long("public"), Absent),
        (&long("$user"), AsRole),
        (&long("fencegate"), Possible),
    ] {
        assert_eq!(SearchPath::read(Some(text)).own_schemas(), Some(expected), "{text}");
    }
    assert_eq!(SearchPath::read(None).own_schemas(), Some(Possible));
    assert_eq!(SearchPath::Unasked.own_schemas(), None);
}

/// The assumed path after these statements have succeeded in order. `|`: ReadyForQuery outside a transaction; `!`: an
/// error.
fn after(statements: &[&str]) -> SearchPath {
    let mut path = Path::new(Some("first"), false);
    for sql in statements {
        match *sql {
            "|" => path.ready(Status::Idle),
            "!" => path.error(),
            sql => {
                let read = fencegate_statement::analyze(sql.as_bytes(), fencegate_statement::Lexing::USUAL).unwrap();
                read.statements.iter().for_each(|statement| path.completed(statement));
                path.ready(Status::Transaction);
            }
        }
    }
    path.now
}

#[test]
fn a_path_is_tracked_through_statements() {
    let is = |schema: &str| SearchPath::read(Some(schema));
    for (statements, expected) in [
        (&["SELECT 1"][..], is("first")),
        (&["SET search_path = a"], is("a")),
        (&["SET search_path = a", "|"], is("a")),
        (&["SET search_path = a", "|", "!"], is("a")),
        (&["SET LOCAL search_path = a"], is("a")),
        // The end of the transaction restores the previous path, which must be queried.
        (&["SET LOCAL search_path = a", "|"], SearchPath::Unasked),
        (&["SET LOCAL search_path = a", "SET LOCAL search_path = b", "|"], SearchPath::Unasked),
        (&["SET search_path = a", "ROLLBACK"], SearchPath::Unasked),
        (&["SET search_path = a", "SAVEPOINT s", "ROLLBACK TO s"], SearchPath::Unasked),
        (&["SET search_path = a", "!"], SearchPath::Unasked),
        (&["SET search_path = a", "|", "ROLLBACK"], is("a")),
        (&["ROLLBACK"], is("first")),
        (&["!"], is("first")),
        (&["SET search_path = a", "|", "DISCARD ALL"], is("first")),
        (&["SET search_path = a", "|", "RESET ALL"], is("first")),
        (&["DO 'BEGIN END'"], SearchPath::Unasked),
    ] {
        assert_eq!(after(statements), expected, "{statements:?}");
    }
    let mut path = Path::new(Some("first"), false);
    path.learn(Some("b"));
    assert_eq!(path.now, is("b"));
    path.forget();
    assert_eq!(path.now, SearchPath::Unasked);
}
