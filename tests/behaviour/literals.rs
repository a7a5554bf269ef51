//! The layers that judge and admit make no decision on human-readable text: they compare literals only with SQL, and no
//! error is a string. A change of wording cannot change a decision.

use sqlparser::keywords::ALL_KEYWORDS;
use std::collections::BTreeMap;
use std::path::Path;
use syn::parse::{ParseStream, Parser};
use syn::visit::{self, Visit};
use syn::{
    Attribute, BinOp, Expr, ExprBinary, ExprLit, ExprMethodCall, GenericArgument, ItemConst, ItemMod, Lit, LitByteStr,
    LitStr, Macro, Pat, PathArguments, PathSegment, Token, Type,
};

const LAYERS: [&str; 5] =
    ["crates/statement/src", "crates/session/src", "crates/fence/src", "crates/catalog/src", "src/state"];

/// PostgreSQL's names (schemas, settings, functions, grammar nodes, error fields), fencegate's names in the database,
/// row names in our catalog queries, and characters.
#[rustfmt::skip]
const ALLOWED: [&str; 37] = [
    "fencegate_guard_", "fencegate_lease", "lease.fence", "{catalogue}", "{process}", "pg_settings", "transaction_timeout",
    "$user", "pg_", "pg_catalog", "pg_temp", "pg_temp_", "pg_toast",
    "application_name", "client_encoding", "in_hot_standby", "search_path", "search_path\0", "server_encoding", "server_version",
    "standard_conforming_strings",
    "analyze", "cursor_to_xml", "dblink", "set_config", "SelectStmt",
    "resource=", "presented=",
    "caller", "child", "event trigger", "reference", "relation", "shadow",
    "_,.*\"", "_./:-%", "~!@#^&|`?+-*/%<>=",
];

/// Methods that compare texts.
const COMPARISONS: [&str; 9] =
    ["contains", "ends_with", "eq", "eq_ignore_ascii_case", "find", "is", "split_once", "starts_with", "strip_prefix"];

/// Values of string constants, by name.
type Constants = BTreeMap<String, Vec<String>>;

struct Literals<'a> {
    constants: &'a Constants,
    compared: Vec<String>,
}

impl Literals<'_> {
    /// Collects the literals of a compared expression or pattern, and the values of the constants that it names.
    fn of(&mut self, compared: &impl Node) {
        struct All<'a>(&'a Constants, &'a mut Vec<String>);
        impl<'ast> Visit<'ast> for All<'_> {
            fn visit_lit_str(&mut self, literal: &'ast LitStr) {
                self.1.push(literal.value());
            }
            fn visit_lit_byte_str(&mut self, literal: &'ast LitByteStr) {
                self.1.push(String::from_utf8_lossy(&literal.value()).into_owned());
            }
            fn visit_path(&mut self, path: &'ast syn::Path) {
                let named = path.segments.last().and_then(|it| self.0.get(&it.ident.to_string()));
                self.1.extend(named.into_iter().flatten().cloned());
            }
            // A computed value is not a literal.
            fn visit_expr_method_call(&mut self, _: &'ast ExprMethodCall) {}
            fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
                if matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Some")) {
                    visit::visit_expr_call(self, call);
                }
            }
            fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}
        }
        compared.walk(&mut All(self.constants, &mut self.compared));
    }
}

trait Node {
    fn walk<'a>(&'a self, visit: &mut impl Visit<'a>);
}

impl Node for Expr {
    fn walk<'a>(&'a self, visit: &mut impl Visit<'a>) {
        visit.visit_expr(self);
    }
}

impl Node for Pat {
    fn walk<'a>(&'a self, visit: &mut impl Visit<'a>) {
        visit.visit_pat(self);
    }
}

impl<'ast> Visit<'ast> for Literals<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        if matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_)) {
            self.of(&*binary.left);
            self.of(&*binary.right);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if COMPARISONS.iter().any(|method| call.method == method) {
            self.of(&*call.receiver);
            call.args.iter().for_each(|argument| self.of(argument));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        self.of(pattern);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        if called.path.is_ident("matches") {
            let parts = |input: ParseStream| {
                let value: Expr = input.parse()?;
                input.parse::<Token![,]>()?;
                let pattern = Pat::parse_multi_with_leading_vert(input)?;
                let guard = input.parse::<Option<Token![if]>>()?.map(|_| input.parse::<Expr>()).transpose()?;
                input.parse::<Option<Token![,]>>()?;
                Ok((value, pattern, guard))
            };
            let (value, pattern, guard) = parts.parse2(called.tokens.clone()).unwrap();
            self.of(&pattern);
            // The expressions live no longer than this call.
            let mut within = Literals { constants: self.constants, compared: Vec::new() };
            within.visit_expr(&value);
            guard.iter().for_each(|guard| within.visit_expr(guard));
            self.compared.append(&mut within.compared);
        }
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|it| it.path().is_ident("cfg") && it.parse_args::<syn::Path>().is_ok_and(|it| it.is_ident("test")))
}

/// The texts with which a source compares.
fn compared(constants: &Constants, source: &str) -> Vec<String> {
    let mut literals = Literals { constants, compared: Vec::new() };
    literals.visit_file(&syn::parse_file(source).unwrap());
    literals.compared
}

/// Adds the string constants of a source.
fn add_constants(constants: &mut Constants, source: &str) {
    struct All<'a>(&'a mut Constants);
    impl<'ast> Visit<'ast> for All<'_> {
        fn visit_item_const(&mut self, constant: &'ast ItemConst) {
            if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &*constant.expr {
                self.0.entry(constant.ident.to_string()).or_default().push(text.value());
            }
        }
        fn visit_item_mod(&mut self, module: &'ast ItemMod) {
            if !is_for_tests(&module.attrs) {
                visit::visit_item_mod(self, module);
            }
        }
    }
    All(constants).visit_file(&syn::parse_file(source).unwrap());
}

/// The number of types `Result<_, String>` in a source.
#[derive(Default)]
struct TextErrors(usize);

impl<'ast> Visit<'ast> for TextErrors {
    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        if let PathArguments::AngleBracketed(arguments) = &segment.arguments
            && segment.ident == "Result"
            && let Some(GenericArgument::Type(Type::Path(error))) = arguments.args.iter().nth(1)
        {
            self.0 += usize::from(error.path.is_ident("String"));
        }
        visit::visit_path_segment(self, segment);
    }
}

fn text_errors(source: &str) -> usize {
    let mut errors = TextErrors::default();
    errors.visit_file(&syn::parse_file(source).unwrap());
    errors.0
}

/// Calls `read` with the name and the text of each source outside of tests.
fn sources(folder: &Path, read: &mut impl FnMut(&str, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            _ if ["tests", "tests.rs", "crates/testing", "simulated"].iter().any(|it| path.ends_with(it)) => {}
            true => sources(&path, read),
            false if path.extension().is_some_and(|it| it == "rs") => {
                let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().display().to_string();
                read(&name, &std::fs::read_to_string(&path).unwrap());
            }
            false => {}
        }
    }
}

/// True for a query, a key word, a SQLSTATE, a type number, an encoding name, a unit, or an allowed literal.
fn is_sql(literal: &str) -> bool {
    let word = literal.to_ascii_uppercase();
    let is_code = literal.bytes().all(|it| it.is_ascii_uppercase() || it.is_ascii_digit());
    let is_query = ["SELECT ", "SET ", "SHOW "].iter().any(|it| literal.starts_with(it));
    literal.len() <= 2
        || is_query
        || is_code
        || ALLOWED.contains(&literal)
        || ALL_KEYWORDS.binary_search(&word.as_str()).is_ok()
}

#[test]
fn decisions_do_not_compare_texts() {
    let in_layers = |read: &mut dyn FnMut(&str, &str)| {
        let folder = |layer| Path::new(env!("CARGO_MANIFEST_DIR")).join(layer);
        LAYERS.iter().for_each(|layer| sources(&folder(layer), &mut |name, source| read(name, source)));
    };
    let (mut constants, mut found) = (Constants::new(), Vec::new());
    in_layers(&mut |_, source| add_constants(&mut constants, source));
    in_layers(&mut |name, source| {
        let texts = compared(&constants, source).into_iter().filter(|it| !is_sql(it));
        found.extend(texts.map(|it| format!("{name}: {it:?}")));
    });
    assert!(found.is_empty(), "compared with something:\n{}", found.join("\n"));
}

#[test]
fn errors_are_not_strings() {
    let mut found = Vec::new();
    let mut read = |name: &str, source: &str| {
        found.extend((text_errors(source) > 0).then(|| name.to_owned()));
    };
    for folder in ["src", "crates"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut read);
    }
    assert!(found.is_empty(), "Result<_, String> in:\n{}", found.join("\n"));
}

#[test]
fn a_string_error_is_found() {
    for (source, number) in [
        ("fn f() -> Result<(), String> { g() }", 1),
        ("struct S { read: Option<Result<Vec<String>, String>> }", 1),
        ("fn f(read: impl FnOnce(&str) -> Result<u8, String>) -> io::Result<String> { g(read) }", 1),
        ("fn f() -> Result<BTreeMap<String, String>, Error> { g() }", 0),
    ] {
        assert_eq!(text_errors(source), number, "{source}");
    }
}

#[test]
fn a_decision_on_a_string_is_found() {
    let found_in = |source| {
        let mut constants = Constants::new();
        add_constants(&mut constants, source);
        compared(&constants, source)
    };
    for source in [
        r#"fn f(it: &Statement) -> bool { it.kind == "its kind" }"#,
        r#"fn f(it: &Statement) -> bool { Some("its kind") != it.opaque }"#,
        r#"fn f(it: &str) -> bool { match it { "its kind" if true => true, _ => false } }"#,
        r#"fn f(it: &str) -> bool { matches!(it, "another" | "its kind") }"#,
        r#"fn f(it: &str) -> bool { if let "its kind" = it { true } else { false } }"#,
        r#"fn f(it: &str) -> bool { ["another", "its kind"].contains(&it) }"#,
        r#"fn f(it: &str) -> bool { g(|it| it.starts_with("its kind")) }"#,
        r#"const KIND: &str = "its kind"; fn f(it: &str) -> bool { it == module::KIND }"#,
    ] {
        assert!(found_in(source).contains(&"its kind".to_owned()), "{source}");
    }
    for source in [
        r#"fn f(it: &str) -> String { format!("{it} is no decision") }"#,
        r#"#[cfg(test)] mod tests { fn f(it: &str) -> bool { it == "its kind" } }"#,
        r#"fn f(it: Result<(), String>) -> bool { it == Err(String::from("its kind")) }"#,
    ] {
        assert_eq!(found_in(source), Vec::<String>::new(), "{source}");
    }
}
