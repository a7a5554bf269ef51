//! What the catalogue says: the relations that policies speak of, and what there is of the guard.
//!
//! Owns the queries, and what differs from the policies. Must never change anything.

use super::trigger::{PREFIX, Relation, Wanted, wanted};
use super::{FUNCTIONS, GuardError, Line, NOTICE, State, refused};
use crate::fence::{column, is_true, named, quote};
use crate::policy::{FencedTable, PolicySet, Resource};
use crate::statement::Operation;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

/// The functions of `guard.sql`, then that of `notice.sql`.
const SIGNATURES: [&str; 6] = [
    "fencegate.presented(text)",
    "fencegate.check_write(text, text, boolean)",
    "fencegate.observe_write(text, boolean)",
    "fencegate.keyed(text, text, text)",
    "fencegate.check_every_key(text, boolean, boolean)",
    "fencegate.guard()",
];
const NOTICE_SIGNATURE: &str = "fencegate.notice_definition()";
const EVENT_TRIGGERS: [&str; 2] = ["fencegate_guard_definition", "fencegate_guard_drop"];

/// Functions that are created together. What they are then is left, as one number, in the comment on one of them.
pub(super) struct Functions {
    text: &'static str,
    /// A list of literals.
    names: &'static str,
    commented: &'static str,
}

pub(super) const GUARD_FUNCTIONS: Functions = Functions {
    text: FUNCTIONS,
    names: "'presented', 'check_write', 'observe_write', 'keyed', 'check_every_key', 'guard'",
    commented: "fencegate.guard()",
};
/// Apart from those, because only a superuser can create it.
pub(super) const NOTICE_FUNCTION: Functions =
    Functions { text: NOTICE, names: "'notice_definition'", commented: NOTICE_SIGNATURE };

impl Functions {
    /// What leaves the number of the functions as they are now in the comment.
    pub(super) fn seal(&self) -> String {
        let (commented, version, content) = (self.commented, self.version(), self.content());
        format!(
            "DO $seal$ BEGIN EXECUTE format('COMMENT ON FUNCTION {commented} IS %L', '{version} ' || {content}); END $seal$"
        )
    }

    /// Columns: the number as it is now, and the comment.
    fn columns(&self, content: &str, seal: &str) -> String {
        let commented = quote(self.commented);
        format!("{} AS {content}, obj_description(to_regprocedure({commented}), 'pg_proc') AS {seal}", self.content())
    }

    fn content(&self) -> String {
        format!(
            "(SELECT md5(string_agg(pg_get_functiondef(p.oid) || pg_get_userbyid(p.proowner), '' ORDER BY p.proname)) \
             FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') AND p.proname IN ({}))",
            self.names
        )
    }

    fn state(&self, content: &str, seal: &str) -> State {
        match content {
            "" => State::Missing,
            _ if seal == format!("{} {content}", self.version()) => State::Ok,
            _ => State::Changed,
        }
    }

    /// Of the functions that this program installs.
    fn version(&self) -> String {
        let hash = Sha256::digest(self.text);
        format!("fencegate guard {:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
    }
}

/// A trigger of the guard that is there.
struct Found {
    definition: String,
    /// `tgenabled`.
    enabled: char,
    is_copy: bool,
    may_alter: bool,
}

/// Relation and name of a trigger.
type Place = (String, String);

/// What is to be done about one trigger.
pub(super) struct Difference {
    state: State,
    what: String,
    pub(super) relation: String,
    pub(super) may_alter: bool,
    pub(super) statements: Vec<String>,
}

/// One look at the catalogue, with what the policies want of it.
pub(super) struct Survey {
    pub(super) is_superuser: bool,
    owner: String,
    wanted: Vec<Wanted>,
    found: BTreeMap<Place, Found>,
    unguarded: Vec<String>,
    functions: State,
    event_triggers: State,
}

impl Survey {
    pub(super) async fn take(client: &Client, policies: &PolicySet) -> Result<Self, GuardError> {
        let facts = rows(client, "read the catalogue", &facts()).await?;
        let fact = |name| facts.first().and_then(|row| column(row, name)).unwrap_or_default().to_owned();
        let (database, owner) = (fact("database"), fact("owner"));
        if owner.is_empty() {
            return Err(GuardError::Uninitialised(database));
        }
        let mut survey = Survey {
            is_superuser: fact("superuser") == "t",
            owner,
            wanted: Vec::new(),
            found: found(client).await?,
            unguarded: Vec::new(),
            functions: GUARD_FUNCTIONS.state(&fact("content"), &fact("seal")),
            event_triggers: event_triggers_state(&fact("event_triggers"), &fact("enabled_event_triggers")),
        };
        if survey.functions == State::Ok && fact("unusable") != "0" {
            survey.functions = State::Disabled;
        }
        if survey.event_triggers == State::Ok {
            survey.event_triggers = NOTICE_FUNCTION.state(&fact("notice_content"), &fact("notice_seal"));
        }
        if !policies.applies_to(&database) {
            return Ok(survey);
        }
        let foreign_tables_truncate = fact("version").parse().is_ok_and(|version: u32| version >= 160_000);
        for resource in &policies.resources {
            for table in &resource.tables {
                let relations = survey.relations(client, resource, table).await?;
                let roles = &policies.exempt_roles;
                survey.wanted.extend(wanted(resource, table, &relations, roles, foreign_tables_truncate));
            }
        }
        Ok(survey)
    }

    /// The fenced table, and all that inherits from it. Notes what cannot be guarded.
    async fn relations(
        &mut self,
        client: &Client,
        resource: &Resource,
        table: &FencedTable,
    ) -> Result<Vec<Relation>, GuardError> {
        if table.operations.iter().all(|operation| *operation == Operation::Ddl) {
            return Ok(Vec::new());
        }
        let (name, resource) = (&table.name, &resource.name);
        let rows = rows(client, "read the catalogue", &tree(table)).await?;
        if rows.is_empty() {
            self.unguarded
                .push(format!("table {name} of resource {resource} does not exist: install again once it does"));
        }
        let mut relations = Vec::new();
        for row in &rows {
            let relation = relation(row);
            match relation.kind {
                'r' | 'p' | 'f' => relations.push(relation),
                _ => self.unguarded.push(format!(
                    "{name} of resource {resource} is no table: only what it stands for can be guarded, if a policy names it"
                )),
            }
        }
        Ok(relations)
    }

    /// What creates the functions, owned as the schema is.
    pub(super) fn functions(&self) -> String {
        let owned = SIGNATURES.map(|signature| format!("ALTER FUNCTION {signature} OWNER TO {};", self.owner));
        format!("{FUNCTIONS}; {}", owned.concat())
    }

    /// How many triggers are wanted, on how many relations.
    pub(super) fn size(&self) -> (usize, usize) {
        let relations: BTreeSet<&str> = self.wanted.iter().map(|wanted| wanted.relation.as_str()).collect();
        (self.wanted.len(), relations.len())
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.unguarded.clone();
        if !self.is_superuser && self.event_triggers != State::Ok {
            let without =
                "without a superuser there are no event triggers: definitions around the proxies are noticed later";
            warnings.push(without.to_owned());
        }
        warnings
    }

    /// What is to be done, triggers that no policy asks for first.
    pub(super) fn differences(&self) -> impl Iterator<Item = Difference> {
        let unwanted = self.unwanted().map(|(place, found)| superfluous(place, found));
        let wanted = self.wanted.iter().filter_map(|wanted| self.difference(wanted));
        unwanted.chain(wanted).collect::<Vec<_>>().into_iter()
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        let mut parts: BTreeMap<(&str, &str), Vec<Difference>> = BTreeMap::new();
        for wanted in &self.wanted {
            let part = parts.entry((&wanted.relation, &wanted.resource)).or_default();
            part.extend(self.difference(wanted));
        }
        for (place, found) in self.unwanted() {
            parts.entry((&place.0, "")).or_default().push(superfluous(place, found));
        }
        let line = |((table, resource), differences): ((&str, &str), Vec<Difference>)| {
            let rank = |state: State| {
                [State::Ok, State::Disabled, State::Changed, State::Missing].iter().position(|it| *it == state)
            };
            let state = differences.iter().map(|it| it.state).max_by_key(|state| rank(*state)).unwrap_or(State::Ok);
            let what: Vec<&str> = differences.iter().map(|it| it.what.as_str()).collect();
            Line { table: table.to_owned(), resource: resource.to_owned(), state, difference: what.join("; ") }
        };
        let mut lines: Vec<Line> = parts.into_iter().map(line).collect();
        let mut other = |table: &str, state: State, difference: &str| {
            let difference = if state == State::Ok { "" } else { difference };
            let (table, difference) = (table.to_owned(), difference.to_owned());
            lines.push(Line { table, resource: String::new(), state, difference });
        };
        let unusable = "not everybody may use them: no privilege USAGE of the schema, or EXECUTE, for PUBLIC";
        let functions = if self.functions == State::Disabled { unusable } else { "not what this program installs" };
        other("(functions)", self.functions, functions);
        if self.is_superuser || self.event_triggers != State::Missing {
            other("(event triggers)", self.event_triggers, "definitions around the proxies are noticed later");
        }
        lines
    }

    /// Copies go with what they are copied from.
    fn unwanted(&self) -> impl Iterator<Item = (&Place, &Found)> {
        let wanted: BTreeSet<(&str, &str)> =
            self.wanted.iter().map(|wanted| (wanted.relation.as_str(), wanted.name.as_str())).collect();
        let is_wanted = move |place: &Place| wanted.contains(&(place.0.as_str(), place.1.as_str()));
        self.found.iter().filter(move |(place, found)| !found.is_copy && !is_wanted(place))
    }

    fn difference(&self, wanted: &Wanted) -> Option<Difference> {
        let Wanted { relation, name, .. } = wanted;
        let enable = format!("ALTER TABLE {relation} ENABLE ALWAYS TRIGGER {name}");
        let drop = format!("DROP TRIGGER {name} ON {relation}");
        let (state, what, statements) = match (self.found.get(&(relation.clone(), name.clone())), &wanted.definition) {
            (None, definition) => {
                let create = definition.iter().cloned().chain([enable]).collect();
                (State::Missing, format!("no {name}"), if definition.is_some() { create } else { Vec::new() })
            }
            (Some(found), Some(definition)) if found.definition != *definition => {
                let what = format!("{name} is: {}", found.definition);
                (State::Changed, what, vec![drop, definition.clone(), enable])
            }
            (Some(found), _) if found.enabled != 'A' => {
                let word = match found.enabled {
                    'D' => "disabled",
                    'R' => "enabled for replicas only",
                    _ => "not enabled for replicas",
                };
                (State::Disabled, format!("{name} is {word}"), vec![enable])
            }
            _ => return None,
        };
        Some(Difference { state, what, relation: relation.clone(), may_alter: wanted.may_alter, statements })
    }
}

/// The triggers there are: relation, and the statement that removes it.
pub(super) async fn drops(client: &Client) -> Result<Vec<(String, String)>, GuardError> {
    let found = found(client).await?.into_iter().filter(|(_, found)| !found.is_copy);
    Ok(found.map(|((relation, name), _)| (relation.clone(), format!("DROP TRIGGER {name} ON {relation}"))).collect())
}

/// All that there is of the guard: what it is, and the statement that removes it.
pub(super) async fn removal(client: &Client) -> Result<Vec<(String, String)>, GuardError> {
    let mut removal = Vec::new();
    for (place, found) in found(client).await? {
        if !found.is_copy {
            let (relation, name) = place;
            removal.push((format!("trigger {name} on {relation}"), format!("DROP TRIGGER {name} ON {relation}")));
        }
    }
    let names = EVENT_TRIGGERS.map(quote).join(", ");
    let query = format!("SELECT evtname AS name FROM pg_event_trigger WHERE evtname IN ({names}) ORDER BY evtname");
    for row in rows(client, "read the catalogue", &query).await? {
        let name = column(&row, "name").unwrap_or_default();
        removal.push((format!("event trigger {name}"), format!("DROP EVENT TRIGGER {name}")));
    }
    let signatures = SIGNATURES.iter().rev().chain([&NOTICE_SIGNATURE]);
    for signature in signatures {
        let query = format!("SELECT to_regprocedure({}) IS NOT NULL AS there", quote(signature));
        if rows(client, "read the catalogue", &query).await?.iter().any(|row| is_true(row, "there")) {
            removal.push((format!("function {signature}"), format!("DROP FUNCTION {signature}")));
        }
    }
    Ok(removal)
}

/// One row: who asks, and what there is beside triggers.
fn facts() -> String {
    let names = EVENT_TRIGGERS.map(quote).join(", ");
    format!(
        "SELECT current_database() AS database, current_setting('server_version_num') AS version, \
           (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser, \
           (SELECT quote_ident(pg_get_userbyid(nspowner)) FROM pg_namespace WHERE nspname = 'fencegate') AS owner, \
           {functions}, {notice}, \
           (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') \
             AND p.proname IN ({guard_names}) AND NOT (has_function_privilege('public', p.oid, 'EXECUTE') \
               AND has_schema_privilege('public', p.pronamespace, 'USAGE'))) AS unusable, \
           (SELECT count(*) FROM pg_event_trigger WHERE evtname IN ({names})) AS event_triggers, \
           (SELECT count(*) FROM pg_event_trigger WHERE evtname IN ({names}) AND evtenabled = 'A') \
             AS enabled_event_triggers",
        functions = GUARD_FUNCTIONS.columns("content", "seal"),
        notice = NOTICE_FUNCTION.columns("notice_content", "notice_seal"),
        guard_names = GUARD_FUNCTIONS.names,
    )
}

/// The relations of a policy's entry: the table first.
fn tree(table: &FencedTable) -> String {
    format!(
        "WITH RECURSIVE {named}, tree(oid, level) AS ( \
           SELECT c.oid, 0 FROM named JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
             WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') \
           UNION SELECT h.inhrelid, tree.level + 1 FROM tree JOIN pg_inherits h ON h.inhparent = tree.oid) \
         SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name, c.relkind AS kind, \
           c.relispartition AS is_partition, pg_partition_root(c.oid)::oid AS root, \
           pg_has_role(current_user, c.relowner, 'USAGE') AS may_alter, \
           EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid \
                   AND h.inhparent NOT IN (SELECT oid FROM tree)) AS has_foreign_parent \
         FROM (SELECT oid, min(level) AS level FROM tree GROUP BY oid) t JOIN pg_class c ON c.oid = t.oid \
         JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY t.level, c.oid",
        named = named([&table.name])
    )
}

fn relation(row: &SimpleQueryRow) -> Relation {
    let text = |name| column(row, name).unwrap_or_default().to_owned();
    Relation {
        oid: text("oid"),
        name: text("name"),
        kind: text("kind").chars().next().unwrap_or_default(),
        is_partition: is_true(row, "is_partition"),
        root: column(row, "root").map(str::to_owned),
        may_alter: is_true(row, "may_alter"),
        has_foreign_parent: is_true(row, "has_foreign_parent"),
    }
}

async fn found(client: &Client) -> Result<BTreeMap<Place, Found>, GuardError> {
    let query = format!(
        "SELECT format('%I.%I', n.nspname, c.relname) AS relation, quote_ident(t.tgname) AS name, \
           t.tgenabled AS enabled, t.tgparentid <> 0 AS is_copy, pg_get_triggerdef(t.oid) AS definition, \
           pg_has_role(current_user, c.relowner, 'USAGE') AS may_alter \
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE starts_with(t.tgname, '{PREFIX}')"
    );
    let rows = rows(client, "read the triggers", &query).await?;
    let found = rows.iter().map(|row| {
        let text = |name| column(row, name).unwrap_or_default().to_owned();
        let found = Found {
            definition: text("definition"),
            enabled: text("enabled").chars().next().unwrap_or_default(),
            is_copy: is_true(row, "is_copy"),
            may_alter: is_true(row, "may_alter"),
        };
        ((text("relation"), text("name")), found)
    });
    Ok(found.collect())
}

fn superfluous(place: &Place, found: &Found) -> Difference {
    let (relation, name) = place;
    Difference {
        state: State::Changed,
        what: format!("no policy asks for {name}"),
        relation: relation.clone(),
        may_alter: found.may_alter,
        statements: vec![format!("DROP TRIGGER {name} ON {relation}")],
    }
}

fn event_triggers_state(there: &str, enabled: &str) -> State {
    let all = EVENT_TRIGGERS.len().to_string();
    match (there == all, enabled == all) {
        (false, _) => State::Missing,
        (true, false) => State::Disabled,
        (true, true) => State::Ok,
    }
}

pub(super) async fn rows(client: &Client, what: &str, query: &str) -> Result<Vec<SimpleQueryRow>, GuardError> {
    let messages = refused(what, client.simple_query(query).await)?;
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}
