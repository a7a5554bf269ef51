//! Random statements that write a keyed table `t (id, k, v)`, along with `u`, which has the same columns, and `w`,
//! which has no key.

use fencegate_statement::rows::ValueType;
use fencegate_testing::dice::Dice;

/// A type that a key can have.
pub struct ColumnType {
    pub name: &'static str,
    pub oid: u32,
    pub kind: ValueType,
    /// Keys as PostgreSQL prints them.
    keys: &'static [&'static str],
    /// Types to which such keys can be cast.
    casts: &'static [&'static str],
}

const NUMBERS: &[&str] = &["1", "2", "3", "-7", "1633837924"];
const WORDS: &[&str] = &["a", "b", "7", "007", " 7", "0099", "abcd", "é", "", "A"];
const UUIDS: &[&str] = &[
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "00000000-0000-0000-0000-000000000001",
    "31323334-3536-3738-3930-313233343536",
];
const INTEGERS: &[&str] = &["int", "bigint", "int4", "pg_catalog.int8", "numeric", "float8", "oid"];
const TEXTS: &[&str] = &["text", "varchar", "char(5)", "varchar(2)", "name", "\"char\"", "int"];

pub const TYPES: [ColumnType; 6] = [
    ColumnType { name: "int", oid: 23, kind: ValueType::Integer, keys: NUMBERS, casts: INTEGERS },
    ColumnType { name: "smallint", oid: 21, kind: ValueType::Integer, keys: &["1", "2", "3", "-7"], casts: INTEGERS },
    ColumnType { name: "bigint", oid: 20, kind: ValueType::Integer, keys: NUMBERS, casts: INTEGERS },
    ColumnType { name: "text", oid: 25, kind: ValueType::Text, keys: WORDS, casts: TEXTS },
    ColumnType { name: "varchar", oid: 1043, kind: ValueType::Text, keys: WORDS, casts: TEXTS },
    ColumnType {
        name: "uuid",
        oid: 2950,
        kind: ValueType::Uuid,
        keys: UUIDS,
        casts: &["uuid", "text", "pg_catalog.uuid"],
    },
];

impl ColumnType {
    /// The tables with their rows, and the triggers that record the affected rows.
    pub fn schema(&self) -> String {
        let (schema, name) = (format!("s_{}", self.name), self.name);
        let rows: Vec<String> =
            (1..=12).map(|id| format!("({id}, {}, 'v{}')", quoted(self.keys[id % self.keys.len()]), id % 3)).collect();
        let rows = rows.join(", ");
        format!(
            "CREATE SCHEMA {schema}; SET search_path = {schema}, pg_catalog;
            CREATE TABLE t (id int UNIQUE, k {name}, v text, UNIQUE (k, id));
            CREATE TABLE u (id int UNIQUE, k {name}, v text);
            CREATE TABLE w (id int, n text);
            INSERT INTO t VALUES {rows}; INSERT INTO u VALUES {rows}; INSERT INTO w SELECT id, v FROM u;
            CREATE TABLE touched (op text, before text, after text);
            CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO touched VALUES (TG_OP,
                    CASE WHEN TG_OP <> 'INSERT' THEN OLD.k END, CASE WHEN TG_OP <> 'DELETE' THEN NEW.k END);
                RETURN NULL;
            END $$;
            CREATE TRIGGER record AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION record();"
        )
    }
}

/// The declared type and the bound value of a parameter.
#[derive(Debug)]
pub struct Parameter {
    /// 0 if not declared.
    pub oid: u32,
    is_binary: bool,
    bytes: Option<Vec<u8>>,
    /// The value as a literal, for EXECUTE.
    literal: String,
}

/// A statement, with its parameters.
#[derive(Debug)]
pub struct Case {
    pub text: String,
    pub parameters: Vec<Parameter>,
    /// The statement returns the keys of the rows that it locks.
    pub locks: bool,
    prepares: Option<[String; 2]>,
}

impl Case {
    /// A statement whose parameters are not declared, and are bound as text.
    pub fn new(text: &str, values: &[&str]) -> Self {
        let parameter = |value: &&str| {
            let bytes = Some(value.as_bytes().to_vec());
            Parameter { oid: 0, is_binary: false, bytes, literal: quoted(value) }
        };
        let parameters = values.iter().map(parameter).collect();
        Self { text: text.to_owned(), parameters, locks: text.starts_with("SELECT"), prepares: None }
    }

    /// PREPARE and EXECUTE, if the statement is run by these.
    pub fn prepares(&self) -> Option<[&str; 2]> {
        self.prepares.as_ref().map(|[prepare, execute]| [prepare.as_str(), execute.as_str()])
    }

    /// The body of a Bind of the unnamed statement.
    pub fn bind(&self) -> Vec<u8> {
        let count = u16::try_from(self.parameters.len()).unwrap().to_be_bytes();
        let formats = self.parameters.iter().flat_map(|parameter| u16::from(parameter.is_binary).to_be_bytes());
        let mut body: Vec<u8> = [0, 0].into_iter().chain(count).chain(formats).chain(count).collect();
        for parameter in &self.parameters {
            let length = parameter.bytes.as_ref().map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap());
            body.extend(length.to_be_bytes());
            body.extend(parameter.bytes.iter().flatten());
        }
        body.extend([0, 0]);
        body
    }
}

/// A random statement.
pub fn statement(dice: &mut Dice, column: &ColumnType) -> Case {
    let mut writer = Writer { dice, column, parameters: Vec::new(), with_parameters: false };
    writer.with_parameters = writer.chance(2);
    let locks = writer.chance(8);
    let text = match (locks, writer.chance(10)) {
        (true, _) => writer.lock(),
        (false, false) => writer.write(),
        (false, true) => {
            let (first, second) = (writer.write(), writer.write());
            format!("WITH c AS ({first} RETURNING 1) {second}")
        }
    };
    let by_name = !writer.parameters.is_empty() && writer.chance(3);
    let parameters = writer.parameters;
    let prepares = by_name.then(|| {
        let types = ["int", "text", "varchar", "uuid", "numeric", "unknown", "bigint", "smallint"];
        let named = parameters.iter().map(|parameter| match parameter.oid {
            23 => types[0],
            25 => types[1],
            1043 => types[2],
            2950 => types[3],
            1700 => types[4],
            20 => types[6],
            21 => types[7],
            1005 => "smallint[]",
            1007 => "int[]",
            1016 => "bigint[]",
            1009 => "text[]",
            1015 => "varchar[]",
            2951 => "uuid[]",
            _ => types[5],
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let named = if parameters.iter().all(|p| p.oid == 0) { String::new() } else { format!("({named})") };
        let values = parameters.iter().map(|parameter| parameter.literal.as_str()).collect::<Vec<_>>().join(", ");
        [format!("PREPARE p {named} AS {text}"), format!("EXECUTE p ({values})")]
    });
    Case { text, parameters, locks, prepares }
}

struct Writer<'d, 'c> {
    dice: &'d mut Dice,
    column: &'c ColumnType,
    parameters: Vec<Parameter>,
    with_parameters: bool,
}

/// Names of a statement's relations.
struct Names {
    /// The target as written in the statement: `t`, `t AS x`, `s_int.t`.
    target: String,
    /// Qualifier of the target's columns.
    own: String,
    /// Qualifier of another relation's columns, if there is one.
    other: Option<&'static str>,
}

impl Writer<'_, '_> {
    /// True once in `sides` times.
    fn chance(&mut self, sides: usize) -> bool {
        self.dice.below(sides) == 0
    }

    fn write(&mut self) -> String {
        match self.dice.below(8) {
            0 | 1 => self.delete(),
            2..=4 => self.update(),
            5 | 6 => self.insert(),
            _ => self.merge(),
        }
    }

    fn names(&mut self, other: Option<&'static str>) -> Names {
        let schema = format!("s_{}", self.column.name);
        let (target, own) = match self.dice.below(5) {
            0 => ("t AS x".to_owned(), "x".to_owned()),
            1 => (format!("{schema}.t"), format!("{schema}.t")),
            2 => ("t \"X\"".to_owned(), "\"X\"".to_owned()),
            3 => (format!("{schema}.t"), "t".to_owned()),
            _ => ("t".to_owned(), "t".to_owned()),
        };
        Names { target, own, other }
    }

    /// Another relation for FROM or USING, and its name.
    fn other(&mut self) -> (String, Option<&'static str>) {
        match self.dice.below(8) {
            0 => ("u".into(), Some("u")),
            1 => ("u AS y".into(), Some("y")),
            // If the target has an alias, another relation may have the target's name.
            2 => ("u AS t".into(), Some("t")),
            3 => ("w AS y (id, v)".into(), Some("y")),
            4 => ("(SELECT id, k AS v FROM u) AS y".into(), Some("y")),
            _ => (String::new(), None),
        }
    }

    fn delete(&mut self) -> String {
        let (from, other) = self.other();
        let names = self.names(other);
        let condition = self.condition(&names, 2);
        let from = if from.is_empty() { from } else { format!("USING {from}") };
        format!("DELETE FROM {} {from} WHERE {condition}", names.target)
    }

    fn update(&mut self) -> String {
        let (from, other) = self.other();
        let names = self.names(other);
        let set = self.set(&names);
        let condition = self.condition(&names, 2);
        let from = if from.is_empty() { from } else { format!("FROM {from}") };
        format!("UPDATE {} SET {set} {from} WHERE {condition}", names.target)
    }

    fn lock(&mut self) -> String {
        let (from, other) = self.other();
        let names = self.names(other);
        let from = if from.is_empty() { from } else { format!(", {from}") };
        let (own, of) = (names.own.clone(), names.own.rsplit('.').next().unwrap().to_owned());
        let condition = self.condition(&names, 2);
        if self.chance(6) {
            // The column aliases exchange the columns' names.
            return format!("SELECT z.v FROM t AS z (id, v, k) WHERE {condition} FOR UPDATE");
        }
        format!("SELECT {own}.k FROM {} {from} WHERE {condition} FOR UPDATE OF {of}", names.target)
    }

    /// An INSERT from arrays, which may have different lengths.
    fn insert_from_arrays(&mut self) -> String {
        let ids = (0..1 + self.dice.below(4)).map(|id| (101 + id).to_string()).collect::<Vec<_>>().join(",");
        let (ids, keys) = (format!("'{{{ids}}}'::int[]"), self.array());
        let rows = match self.dice.below(5) {
            0 => format!("(id, k) SELECT unnest({ids}), unnest({keys})"),
            1 => format!("(k, id) SELECT x.b, a FROM unnest({ids}, {keys}) AS x(a, b)"),
            2 => format!("SELECT * FROM unnest({ids}, {keys})"),
            3 => format!("(k, v) SELECT z, 'v' FROM unnest({keys}) AS z"),
            _ => format!("(id, k) SELECT * FROM unnest({ids}, {keys})"),
        };
        let conflict = self.conflict("t");
        format!("INSERT INTO t {rows} {conflict}")
    }

    fn insert(&mut self) -> String {
        if self.chance(3) {
            return self.insert_from_arrays();
        }
        let rows = 1 + self.dice.below(3);
        let (columns, order) = match self.dice.below(4) {
            0 => ("", "ikv"),
            1 => ("(k, id)", "ki"),
            2 => ("(v, \"k\", id)", "vki"),
            _ => ("(id, k, v)", "ikv"),
        };
        let mut lists = Vec::new();
        for _ in 0..rows {
            let items: Vec<String> = order.chars().map(|column| self.item(column)).collect();
            lists.push(format!("({})", items.join(", ")));
        }
        let lists = lists.join(", ");
        let end = match self.dice.below(16) {
            0 => " ORDER BY 1",
            1 => " LIMIT 2",
            _ => "",
        };
        let (target, own) = match self.dice.below(3) {
            0 => ("t AS x", "x"),
            _ => ("t", "t"),
        };
        let overriding = if self.chance(20) { "OVERRIDING USER VALUE" } else { "" };
        let conflict = self.conflict(own);
        format!("INSERT INTO {target} {columns} {overriding} VALUES {lists}{end} {conflict}")
    }

    fn item(&mut self, column: char) -> String {
        match column {
            'i' => self.id(),
            'k' => self.assigned(),
            _ => self.word(),
        }
    }

    /// The id of an existing or a missing row.
    fn id(&mut self) -> String {
        match self.dice.below(8) {
            // A parameter that is used as a key elsewhere gets another type here.
            0 | 1 if self.with_parameters => self.parameter(),
            2 if self.with_parameters => format!("{}::int", self.parameter()),
            _ => (1 + self.dice.below(24)).to_string(),
        }
    }

    fn word(&mut self) -> String {
        match self.dice.below(6) {
            0 if self.with_parameters => self.parameter(),
            _ => format!("'v{}'", self.dice.below(3)),
        }
    }

    fn conflict(&mut self, own: &str) -> String {
        let target = match self.dice.below(8) {
            0..=2 => return String::new(),
            3 => "DO NOTHING",
            4 => "(id) DO UPDATE SET",
            5 => "ON CONSTRAINT t_k_id_key DO UPDATE SET",
            _ => "(k, id) DO UPDATE SET",
        };
        if !target.ends_with("SET") {
            return format!("ON CONFLICT {target}");
        }
        let names = Names { target: String::new(), own: own.into(), other: Some("excluded") };
        let set = match self.dice.below(3) {
            0 => "k = excluded.k".to_owned(),
            _ => self.set(&names),
        };
        let condition = match self.dice.below(2) {
            0 => format!(" WHERE {}", self.condition(&names, 1)),
            _ => String::new(),
        };
        format!("ON CONFLICT {target} {set}{condition}")
    }

    fn merge(&mut self) -> String {
        let names = self.names(Some("y"));
        let own = names.own.clone();
        let on = match self.dice.below(3) {
            0 => format!("{own}.id = y.id"),
            1 => self.condition(&names, 1),
            _ => format!("{own}.id = y.id AND {}", self.condition(&names, 1)),
        };
        let branches: Vec<String> = (0..1 + self.dice.below(2)).map(|_| self.branch(&names)).collect();
        let source = self.dice.pick(&["u AS y", "(SELECT id + 6 AS id, k, v FROM u) AS y"]).to_owned();
        format!("MERGE INTO {} USING {source} ON {on} {}", names.target, branches.join(" "))
    }

    fn branch(&mut self, names: &Names) -> String {
        let and = match self.dice.below(2) {
            0 => format!(" AND {}", self.condition(names, 1)),
            _ => String::new(),
        };
        match self.dice.below(6) {
            0 => format!("WHEN MATCHED{and} THEN DELETE"),
            1 => format!("WHEN MATCHED{and} THEN UPDATE SET {}", self.set(names)),
            2 => format!("WHEN NOT MATCHED BY SOURCE{and} THEN DELETE"),
            3 => format!("WHEN NOT MATCHED BY SOURCE{and} THEN UPDATE SET {}", self.set(names)),
            4 => {
                let key = self.assigned();
                format!("WHEN NOT MATCHED THEN INSERT (id, k, v) VALUES (y.id + 100, {key}, 'n')")
            }
            _ => format!("WHEN NOT MATCHED THEN INSERT VALUES (y.id + 100, {}, 'n')", self.assigned()),
        }
    }

    /// The assignments of SET.
    fn set(&mut self, names: &Names) -> String {
        let own = &names.own;
        match self.dice.below(9) {
            0 => format!("k = {own}.k, v = 'x'"),
            1 => "k = k".to_owned(),
            2 => format!("k = {}.k", names.other.unwrap_or("t")),
            3 => format!("(k, v) = ({}, 'x')", self.assigned()),
            4 | 5 => format!("v = 'x', k = {}", self.assigned()),
            6 => format!("v = {}", self.word()),
            _ => "v = 'x'".to_owned(),
        }
    }

    fn in_array(&mut self, names: &Names) -> String {
        let (key, array) = (self.key(names), self.array());
        match self.dice.below(6) {
            0 => format!("{key} IN (SELECT unnest({array}))"),
            1 => format!("{key} = ANY (SELECT x FROM unnest({array}) AS z(x))"),
            2 => format!("{key} {} ({array})", self.dice.pick(&["<> ALL", "= ALL", "<> ANY", "= SOME"])),
            _ => format!("{key} = ANY ({array})"),
        }
    }

    fn array(&mut self) -> String {
        let elements: Vec<Option<&str>> =
            (0..self.dice.below(4)).map(|_| (!self.chance(8)).then(|| *self.dice.pick(self.column.keys))).collect();
        let shown = |element: &Option<&str>| element.map_or("NULL".to_owned(), |text| format!("\"{text}\""));
        let text = format!("{{{}}}", elements.iter().map(shown).collect::<Vec<_>>().join(","));
        let own = self.column.name;
        match self.dice.below(6) {
            0 => format!("ARRAY[{}]", self.list()),
            1 => format!("ARRAY[{}]::{own}[]", self.list()),
            2 => quoted(&text),
            3 | 4 if self.with_parameters => self.array_parameter(&elements, text),
            _ => format!(
                "{}::{}[]",
                quoted(&text),
                if self.chance(3) { *self.dice.pick(self.column.casts) } else { own }
            ),
        }
    }

    fn array_parameter(&mut self, elements: &[Option<&str>], text: String) -> String {
        let own = match self.column.oid {
            20 => 1016,
            21 => 1005,
            23 => 1007,
            25 => 1009,
            1043 => 1015,
            _ => 2951,
        };
        let oid = match self.dice.below(6) {
            0 | 1 => 0,
            2 => [1005, 1007, 1016, 1009, 1015, 2951][self.dice.below(6)],
            _ => own,
        };
        let is_binary = self.chance(2);
        let of = match if oid == 0 { own } else { oid } {
            1016 => 20,
            1005 => 21,
            1007 => 23,
            1015 => 1043,
            2951 => 2950,
            _ => 25,
        };
        let bytes = if is_binary { binary_array(elements, of) } else { text.clone().into_bytes() };
        self.parameters.push(Parameter { oid, is_binary, bytes: Some(bytes), literal: quoted(&text) });
        let parameter = format!("${}", self.parameters.len());
        match self.dice.below(4) {
            0 => format!("{parameter}::{}[]", self.column.name),
            1 => format!("{parameter}::{}[]", self.dice.pick(self.column.casts)),
            _ => parameter,
        }
    }

    fn condition(&mut self, names: &Names, depth: usize) -> String {
        if self.chance(5) {
            return self.in_array(names);
        }
        let pick = self.dice.below(if depth == 0 { 14 } else { 20 });
        match pick {
            0..=4 => format!("{} = {}", self.key(names), self.value()),
            5 => format!("{} = {}", self.value(), self.key(names)),
            6 | 7 => format!("{} IN ({})", self.key(names), self.list()),
            8 => format!("{} = ANY (ARRAY[{}])", self.key(names), self.list()),
            9 => format!("{}.id < {}", names.own, self.id()),
            10 => format!("{}.v = {}", names.own, self.word()),
            11 => match names.other {
                Some(other) => format!("{other}.id = {}.id", names.own),
                None => "true".to_owned(),
            },
            12 => {
                let operator = *self.dice.pick(&[&"<>", &">=", &"IS NOT DISTINCT FROM", &"OPERATOR(pg_catalog.=)"]);
                format!("{} {operator} {}", self.key(names), self.value())
            }
            13 => format!("EXISTS (SELECT FROM u AS z WHERE z.k = {} AND z.id > {}.id)", self.value(), names.own),
            14..=16 => format!("({} AND {})", self.condition(names, depth - 1), self.condition(names, depth - 1)),
            17 | 18 => format!("({} OR {})", self.condition(names, depth - 1), self.condition(names, depth - 1)),
            _ => format!("NOT ({})", self.condition(names, depth - 1)),
        }
    }

    /// The key column, or another column of the same name.
    fn key(&mut self, names: &Names) -> String {
        match (self.dice.below(8), names.other) {
            (0 | 1, _) => "k".to_owned(),
            (2, Some(other)) => format!("{other}.k"),
            (3, _) => format!("s_{}.t.k", self.column.name),
            (4, _) => format!("{}.\"k\"", names.own),
            (5, _) => "t.k".to_owned(),
            _ => format!("{}.k", names.own),
        }
    }

    fn list(&mut self) -> String {
        (0..1 + self.dice.below(3)).map(|_| self.value()).collect::<Vec<_>>().join(", ")
    }

    /// A value to store. The server converts more values here than in a comparison.
    fn assigned(&mut self) -> String {
        match self.dice.below(10) {
            0 => "7".to_owned(),
            1 => "007".to_owned(),
            _ => self.value(),
        }
    }

    fn value(&mut self) -> String {
        if self.with_parameters && self.chance(3) {
            return self.parameter();
        }
        let key = *self.dice.pick(self.column.keys);
        let literal = quoted(key);
        let bare = self.column.kind == ValueType::Integer;
        match self.dice.below(14) {
            4 if self.with_parameters => format!("{}::{}", self.parameter(), self.dice.pick(self.column.casts)),
            5 => format!("{literal}::{}", self.dice.pick(self.column.casts)),
            6 => format!("CAST({literal} AS {})", self.dice.pick(self.column.casts)),
            7 if bare => format!("' {} '", literal.trim_matches('\'')),
            7 => literal.to_uppercase(),
            8 => format!("E{literal}"),
            9 => match self.dice.below(4) {
                0 => format!("(SELECT {literal}::{})", self.column.name),
                1 => "NULL".to_owned(),
                2 => format!("{literal} COLLATE \"C\""),
                _ => format!("coalesce({literal}, {literal})"),
            },
            _ if bare && !self.chance(4) => literal.trim_matches('\'').to_owned(),
            _ => literal,
        }
    }

    /// A new parameter, or sometimes one that was used before.
    fn parameter(&mut self) -> String {
        let count = self.parameters.len();
        if count > 0 && self.chance(2) {
            return format!("${}", 1 + self.dice.below(count));
        }
        let oid = match self.dice.below(8) {
            0..=3 => 0,
            4 | 5 => self.column.oid,
            6 => 25,
            _ => [20, 21, 23, 1043, 1700, 2950][self.dice.below(6)],
        };
        let key = *self.dice.pick(&self.column.keys.iter().collect::<Vec<_>>());
        let is_binary = self.chance(2);
        // An undeclared parameter usually has the column's type.
        let encoded_as = if oid == 0 { self.column.oid } else { oid };
        let bytes = if is_binary { binary(key, encoded_as) } else { key.as_bytes().to_vec() };
        let bytes = (!self.chance(20)).then_some(bytes);
        let literal = match key.parse::<i64>() {
            Ok(number) if self.chance(2) => number.to_string(),
            _ => quoted(key),
        };
        self.parameters.push(Parameter { oid, is_binary, bytes, literal });
        format!("${}", count + 1)
    }
}

fn quoted(text: &str) -> String {
    format!("'{text}'")
}

fn binary_array(elements: &[Option<&str>], of: u32) -> Vec<u8> {
    let mut bytes = [1, 1, of, u32::try_from(elements.len()).unwrap(), 1].map(u32::to_be_bytes).concat();
    for element in elements {
        let value = element.map(|key| binary(key, of));
        bytes.extend(value.as_ref().map_or(-1, |value| i32::try_from(value.len()).unwrap()).to_be_bytes());
        bytes.extend(value.iter().flatten());
    }
    bytes
}

fn binary(key: &str, oid: u32) -> Vec<u8> {
    let number: i64 = key.trim().parse().unwrap_or_default();
    match oid {
        20 => number.to_be_bytes().to_vec(),
        21 => (number as i16).to_be_bytes().to_vec(),
        23 => (number as i32).to_be_bytes().to_vec(),
        2950 => u128::from_str_radix(&key.replace('-', ""), 16).unwrap_or_default().to_be_bytes().to_vec(),
        _ => key.as_bytes().to_vec(),
    }
}
