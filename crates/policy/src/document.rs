//! One policy file: parses YAML into declarations with their positions.
//!
//! Owns the format. Must never use other files: `load` checks for conflicts between files.

use super::{FencedFunction, FencedTable, Issuer, Issuers, Mode, OnMissing, Opaque, Template, name};
use crate::yaml::{self, Fault, Node, NodeReader, Position, Value};
use fencegate_leader::ElectionName;
use fencegate_statement::Operation;
use std::collections::BTreeMap;
use std::fmt;

/// Names of the operations.
pub(super) const OPERATIONS: [(&str, Operation); 5] = [
    ("insert", Operation::Insert),
    ("update", Operation::Update),
    ("delete", Operation::Delete),
    ("truncate", Operation::Truncate),
    ("ddl", Operation::Ddl),
];

/// Names of the rules for opaque statements.
const OPAQUE: [(&str, Opaque); 3] =
    [("reject", Opaque::Reject), ("require_token", Opaque::RequireToken), ("allow", Opaque::Allow)];

/// A declaration and its position.
#[derive(Debug)]
pub(super) struct Placed<T> {
    pub(super) at: Position,
    pub(super) value: T,
}

/// All declarations of one file.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) resources: Vec<DeclaredResource>,
    pub(super) opaque: Option<Placed<Opaque>>,
    pub(super) opaque_roles: Option<Placed<BTreeMap<String, Opaque>>>,
    pub(super) databases: Option<Placed<Vec<String>>>,
    pub(super) exempt_roles: Option<Placed<Vec<String>>>,
}

/// A resource as declared in one file.
#[derive(Debug)]
pub(super) struct DeclaredResource {
    pub(super) name: Placed<String>,
    /// The names of the keys' resources, if the resource is keyed.
    pub(super) names: Option<Template>,
    pub(super) issuer: Option<Placed<DeclaredIssuer>>,
    pub(super) tables: Vec<Placed<FencedTable>>,
    pub(super) functions: Vec<Placed<FencedFunction>>,
    pub(super) on_missing: OnMissing,
    pub(super) mode: Mode,
}

/// The issuer of tokens, or one for every key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeclaredIssuer {
    One(Issuer),
    OfKeys(Issuers),
}

impl DeclaredIssuer {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::OfKeys(one), Self::OfKeys(two)) => {
                let ends = |it: &Issuers| (it.kind(), it.names().before().to_owned(), it.names().after().to_owned());
                ends(one) == ends(two)
            }
            _ => self == other,
        }
    }

    /// Returns true if candidates' keys of one etcd election may be among those of the other. Elections of keys share
    /// their prefix with no other election. Leases cannot be nested.
    pub(super) fn may_be_nested_with(&self, other: &Self) -> bool {
        use Issuer::Election;
        use Issuers::Elections;
        match (self, other) {
            (Self::One(Election(one)), Self::One(Election(two))) => one.is_nested_with(two),
            (Self::OfKeys(Elections(keys)), Self::One(Election(name)))
            | (Self::One(Election(name)), Self::OfKeys(Elections(keys))) => {
                keys.before().starts_with(&name.prefix()) || name.as_str().starts_with(keys.before())
            }
            (Self::OfKeys(Elections(one)), Self::OfKeys(Elections(two))) => {
                one.before().starts_with(two.before()) || two.before().starts_with(one.before())
            }
            _ => false,
        }
    }
}

impl fmt::Display for DeclaredIssuer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(name) => name.fmt(formatter),
            Self::OfKeys(names) => names.fmt(formatter),
        }
    }
}

/// Parses one file. Returns the valid parts along with the faults, so that other checks can continue.
pub(super) fn read(bytes: &[u8]) -> (Document, Vec<Fault>) {
    match yaml::parse(bytes) {
        Ok(root) => {
            let mut reader = NodeReader::default();
            let document = document(&mut reader, &root).unwrap_or_default();
            (document, reader.faults)
        }
        Err(fault) => (Document::default(), vec![fault]),
    }
}

fn document(reader: &mut NodeReader, root: &Node) -> Option<Document> {
    let keys = ["version", "resources", "opaque", "opaque_roles", "databases", "exempt_roles"];
    let fields = reader.fields(root, "the file", &keys)?;
    match fields.find("version") {
        None => reader.fault(root.at, "the file has no version: write `version: 1`"),
        Some(Node { value: Value::Integer(1), .. }) => {}
        Some(node) => reader.fault(node.at, "this version of fencegate reads `version: 1` only"),
    }
    let mut document = Document::default();
    if let Some(node) = fields.find("resources") {
        let list = reader.list(node, "`resources`").unwrap_or_default();
        document.resources = list.iter().filter_map(|item| resource(reader, item)).collect();
    }
    document.opaque = fields.find("opaque").and_then(|node| opaque(reader, node));
    document.opaque_roles = fields.find("opaque_roles").and_then(|node| opaque_roles(reader, node));
    document.databases = fields.find("databases").and_then(|node| names(reader, node, "`databases`"));
    if let Some(Placed { at, value }) = &document.databases
        && value.is_empty()
    {
        reader.fault(*at, "`databases` is empty: omit it to fence the tables in every database that has them");
    }
    document.exempt_roles = fields.find("exempt_roles").and_then(|node| names(reader, node, "`exempt_roles`"));
    Some(document)
}

fn opaque(reader: &mut NodeReader, node: &Node) -> Option<Placed<Opaque>> {
    let value = reader.choice(node, "`opaque`", &OPAQUE)?;
    Some(Placed { at: node.at, value })
}

fn opaque_roles(reader: &mut NodeReader, node: &Node) -> Option<Placed<BTreeMap<String, Opaque>>> {
    const WHAT: &str = "`opaque_roles`";
    let mut roles = BTreeMap::new();
    for (key, value) in reader.mapping(node, WHAT)? {
        let role = sql_name(reader, key, WHAT, name::single);
        let opaque = reader.choice(value, "`opaque` of a role", &OPAQUE);
        if let (Some(role), Some(opaque)) = (role, opaque)
            && roles.insert(role.clone(), opaque).is_some()
        {
            reader.fault(key.at, format!("the role {role} already has a value"));
        }
    }
    Some(Placed { at: node.at, value: roles })
}

fn names(reader: &mut NodeReader, node: &Node, what: &str) -> Option<Placed<Vec<String>>> {
    let list = reader.list(node, what)?;
    let faults = reader.faults.len();
    let value = list.iter().filter_map(|item| sql_name(reader, item, what, name::single)).collect();
    // A list that contains only faults is not an empty list.
    (reader.faults.len() == faults).then_some(Placed { at: node.at, value })
}

fn resource(reader: &mut NodeReader, node: &Node) -> Option<DeclaredResource> {
    let keys = ["name", "election", "lease", "tables", "functions", "on_missing", "mode"];
    let fields = reader.fields(node, "a resource", &keys)?;
    let named = match fields.find("name") {
        Some(name) => resource_name(reader, name),
        None => {
            reader.fault(node.at, "the resource has no `name`");
            None
        }
    };
    let table_list = fields.find("tables").and_then(|node| reader.list(node, "`tables`"));
    let tables: Vec<_> = table_list.unwrap_or_default().iter().filter_map(|item| table(reader, item)).collect();
    let function_list = fields.find("functions").and_then(|node| reader.list(node, "`functions`"));
    let functions = function_list.unwrap_or_default().iter().filter_map(|item| function(reader, item)).collect();
    let is_missing_or_empty = |key: &str| match fields.find(key) {
        Some(Node { value: Value::List(list), .. }) => list.is_empty(),
        Some(_) => false,
        None => true,
    };
    if is_missing_or_empty("tables") && is_missing_or_empty("functions") {
        reader.fault(node.at, "the resource fences nothing: name `tables` or `functions`");
    }
    let on_missing = fields.find("on_missing").and_then(|node| {
        reader.choice(node, "`on_missing`", &[("reject", OnMissing::Reject), ("allow", OnMissing::Allow)])
    });
    let mode = fields
        .find("mode")
        .and_then(|node| reader.choice(node, "`mode`", &[("enforce", Mode::Enforce), ("observe", Mode::Observe)]));
    let issuer = match (fields.find("election"), fields.find("lease")) {
        (Some(_), Some(lease)) => {
            reader.fault(
                lease.at,
                "the resource already has an `election`: its tokens come either from an `election` or from a `lease`",
            );
            None
        }
        (Some(election), None) => issuer(reader, election, "election", Issuer::Election, Issuers::Elections),
        (None, Some(lease)) => issuer(reader, lease, "lease", Issuer::Lease, Issuers::Leases),
        (None, None) => None,
    };
    let (name, names) = named?;
    let is_template_but_wrong = names.is_none() && name.value.contains(['{', '}']);
    if !is_template_but_wrong {
        agree_on_keys(reader, names.as_ref(), &tables, issuer.as_ref());
    }
    if let (Some(names), Some(functions)) = (&names, fields.find("functions")) {
        let message = format!("a function call does not show its {{{}}}: omit `functions`", names.placeholder);
        reader.fault(functions.at, message);
    }
    Some(DeclaredResource {
        name,
        names,
        issuer,
        tables,
        functions,
        on_missing: on_missing.unwrap_or_default(),
        mode: mode.unwrap_or_default(),
    })
}

/// The name, and the template if the name has a placeholder.
fn resource_name(reader: &mut NodeReader, node: &Node) -> Option<(Placed<String>, Option<Template>)> {
    let name = reader.text(node, "the name of a resource")?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_./:-".contains(c);
    let names = match Template::parse(name) {
        Ok(names) => names,
        Err(error) => {
            reader.fault(node.at, format!("`{name}` is not a valid name for resources: {error}"));
            None
        }
    };
    // Braces that are not a placeholder were already reported.
    let mut outside = name.chars().filter(|c| !"{}".contains(*c));
    if name.is_empty() || !outside.all(is_allowed) {
        reader
            .fault(node.at, format!("`{name}` is not a valid name for a resource: use letters, digits and _ . / : -"));
    }
    // Keep the resource, so that its tables are still checked against other resources.
    Some((Placed { at: node.at, value: name.to_owned() }, names))
}

fn issuer(
    reader: &mut NodeReader,
    node: &Node,
    kind: &str,
    one: fn(ElectionName) -> Issuer,
    of_keys: fn(Template) -> Issuers,
) -> Option<Placed<DeclaredIssuer>> {
    let text = reader.text(node, &format!("`{kind}`"))?;
    let mut refuse = |why: String| reader.fault(node.at, format!("`{text}` is not a valid name for the {kind}: {why}"));
    let template = Template::parse(text).map_err(|error| refuse(error.to_string())).ok()?;
    // A check of one key is enough: a key with a slash has no election.
    let of_a_key = template.as_ref().map_or(text.to_owned(), |template| template.fill("key"));
    let name = of_a_key.parse().map_err(|error: fencegate_leader::InvalidName| refuse(error.to_string())).ok()?;
    if template.as_ref().is_some_and(|it| it.before().is_empty() && it.after().is_empty()) {
        refuse("the placeholder alone would match every name: add text before or after it".to_owned());
        return None;
    }
    let value = match template {
        None => DeclaredIssuer::One(one(name)),
        Some(template) => DeclaredIssuer::OfKeys(of_keys(template)),
    };
    Some(Placed { at: node.at, value })
}

/// In a keyed resource, all tables and the token issuer have a key; in other resources, none of them has one.
fn agree_on_keys(
    reader: &mut NodeReader,
    names: Option<&Template>,
    tables: &[Placed<FencedTable>],
    issuer: Option<&Placed<DeclaredIssuer>>,
) {
    for Placed { at, value: table } in tables {
        match names {
            Some(names) if table.key.is_none() => {
                let column = &names.placeholder;
                reader.fault(
                    *at,
                    format!("the resource is keyed by {{{column}}}: name the table's column, such as `key: {column}`"),
                );
            }
            None if table.key.is_some() => {
                reader.fault(*at, "a table with a `key` needs a resource with a placeholder, such as `shard/{shard}`");
            }
            _ => (),
        }
    }
    match (names, issuer) {
        (Some(names), Some(Placed { at, value: DeclaredIssuer::One(issuer) })) => {
            let (kind, placeholder) = (issuer.kind(), &names.placeholder);
            reader.fault(
                *at,
                format!("the resources of all keys would share one {kind}: add {{{placeholder}}} to its name"),
            );
        }
        (Some(names), Some(Placed { at, value: DeclaredIssuer::OfKeys(issuers) }))
            if issuers.names().placeholder != names.placeholder =>
        {
            reader.fault(*at, format!("the placeholder differs from that of the resource, {{{}}}", names.placeholder));
        }
        (None, Some(Placed { at, value: DeclaredIssuer::OfKeys(issuers) })) => {
            reader.fault(*at, format!("the name of the resource has no {{{}}}", issuers.names().placeholder));
        }
        _ => (),
    }
}

fn table(reader: &mut NodeReader, node: &Node) -> Option<Placed<FencedTable>> {
    if !matches!(node.value, Value::Mapping(_)) {
        let name = sql_name(reader, node, "a table", name::qualified)?;
        let operations = OPERATIONS.map(|(_, operation)| operation).to_vec();
        return Some(Placed { at: node.at, value: FencedTable { name, operations, database: None, key: None } });
    }
    let fields = reader.fields(node, "a table", &["name", "operations", "database", "key"])?;
    let database =
        fields.find("database").and_then(|node| sql_name(reader, node, "`database` of a table", name::single));
    let key = fields.find("key").and_then(|node| sql_name(reader, node, "`key`", name::single));
    let operations = match fields.find("operations") {
        Some(node) => operations(reader, node),
        None => OPERATIONS.map(|(_, operation)| operation).to_vec(),
    };
    let Some(name_node) = fields.find("name") else {
        reader.fault(node.at, "the table has no `name`");
        return None;
    };
    let name = sql_name(reader, name_node, "the name of a table", name::qualified)?;
    Some(Placed { at: name_node.at, value: FencedTable { name, operations, database, key } })
}

fn operations(reader: &mut NodeReader, node: &Node) -> Vec<Operation> {
    let list = match reader.list(node, "`operations`") {
        Some([]) => {
            reader.fault(node.at, "`operations` is empty: omit it to fence all operations");
            return Vec::new();
        }
        list => list.unwrap_or_default(),
    };
    let mut operations: Vec<_> =
        list.iter().filter_map(|item| reader.choice(item, "an operation", &OPERATIONS)).collect();
    operations.sort_unstable();
    operations.dedup();
    operations
}

fn function(reader: &mut NodeReader, node: &Node) -> Option<Placed<FencedFunction>> {
    let value = sql_name(reader, node, "a function", name::function)?;
    Some(Placed { at: node.at, value })
}

fn sql_name<T>(
    reader: &mut NodeReader,
    node: &Node,
    what: &str,
    read: fn(&str) -> Result<T, name::NameError>,
) -> Option<T> {
    let text = reader.text(node, what)?;
    read(text).map_err(|error| reader.fault(node.at, error.to_string())).ok()
}
