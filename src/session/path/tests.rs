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

/// What may be another schema than it looks like is every schema.
#[test]
fn what_is_not_plainly_a_list_is_every_schema() {
    let long = ["s"; MOST_SCHEMAS + 1].join(", ");
    for text in ["\"$user\", public", "$user", "$USER", "été", "\"a", "a b", "a,", ",a", &long] {
        assert_eq!(SearchPath::read(Some(text)), SearchPath::Any, "{text}");
    }
    assert_eq!(SearchPath::read(None), SearchPath::Any);
    // In quotes, only the very name is the role's.
    assert_eq!(schemas("\"$USER\""), ["$USER"]);
}
