//! The differences between the guard that the policies want and the one in the catalog.
//!
//! Owns the comparison. Must never change anything.

use super::catalog::{
    CHECK_SIGNATURES, FUNCTIONS, GUARD_FUNCTIONS, InstalledTrigger, NOTICE_FUNCTION, SIGNATURES, Subscription,
    TriggerName, event_triggers, event_triggers_state, facts, found, leased, relation, subscriptions, tree,
};
use super::lock::rows;
use super::outcome::{GuardError, GuardState, RemainingStatements, StatusLine};
use super::trigger::{GuardedRelation, WantedTrigger, wanted};
use fencegate_policy::{FencedTable, PolicySet, QualifiedName, Resource, guarded_lease};
use fencegate_postgres::sql::{column, quote};
use fencegate_statement::Operation;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tokio_postgres::Client;

/// The effect of missing event triggers.
pub(super) const NO_EVENT_TRIGGERS: &str =
    "definitions that bypass the proxies are noticed later, until a superuser has run `fencegate guard install`";

/// Maximum number of other roles' tables that a warning names.
const MOST_NAMED: usize = 10;

/// A difference between a trigger and the policies.
pub(super) struct Difference {
    state: GuardState,
    what: String,
    pub(super) relation: String,
    pub(super) may_alter: bool,
    pub(super) statements: Vec<String>,
}

/// A snapshot of the catalog, with the guard that the policies require.
pub(super) struct Survey {
    pub(super) is_superuser: bool,
    /// The connecting role has the privileges of the schema's owner.
    pub(super) owns_schema: bool,
    pub(super) database: String,
    /// The owner of the schema.
    pub(super) owner: String,
    wanted: Vec<WantedTrigger>,
    found: BTreeMap<TriggerName, InstalledTrigger>,
    pub(super) unguarded: Vec<String>,
    /// Tables of the policies that are missing here.
    pub(super) missing: Vec<QualifiedName>,
    pub(super) functions: GuardState,
    pub(super) event_triggers: GuardState,
    wanted_leases: BTreeMap<String, String>,
    found_leases: BTreeMap<String, String>,
    subscriptions: Vec<Subscription>,
}

impl Survey {
    pub(super) async fn take(client: &Client, policies: &PolicySet) -> Result<Self, GuardError> {
        let facts = rows(client, "read the catalog", &facts()).await?;
        let fact = |name| facts.first().and_then(|row| column(row, name)).unwrap_or_default().to_owned();
        let (database, owner) = (fact("database"), fact("owner"));
        if owner.is_empty() {
            return Err(GuardError::Uninitialized(database));
        }
        if fact("outdated") == "t" {
            return Err(GuardError::Outdated(database));
        }
        let mut survey = Survey {
            is_superuser: fact("superuser") == "t",
            owns_schema: fact("owns_schema") == "t",
            database: database.clone(),
            owner,
            wanted: Vec::new(),
            found: BTreeMap::new(),
            unguarded: Vec::new(),
            missing: Vec::new(),
            functions: GUARD_FUNCTIONS.state(&fact("content"), &fact("seal")),
            event_triggers: event_triggers_state(
                &fact("event_triggers"),
                &fact("enabled_event_triggers"),
                NOTICE_FUNCTION.state(&fact("notice_content"), &fact("notice_seal")),
            ),
            wanted_leases: BTreeMap::new(),
            found_leases: leased(client).await?,
            subscriptions: subscriptions(client).await?,
        };
        if survey.functions == GuardState::Ok && fact("others") != "0" {
            survey.functions = GuardState::Changed;
        } else if survey.functions == GuardState::Ok && fact("unusable") != "0" {
            survey.functions = GuardState::Disabled;
        }
        let mut fenced = Vec::new();
        if policies.applies_to(&database) {
            survey.want(client, policies, &fact("version"), &mut fenced).await?;
        }
        let (found, others) = found(client, &fenced).await?;
        survey.found = found;
        if !others.is_empty() {
            let more = others.len().saturating_sub(MOST_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let others = others.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            survey.unguarded.push(format!(
                "triggers with the guard's names stay on {others}{more}, because the owner owns no fenced table; `fencegate guard remove` drops them"
            ));
        }
        Ok(survey)
    }

    /// The triggers that the policies require, and the relations that they fence.
    async fn want(
        &mut self,
        client: &Client,
        policies: &PolicySet,
        version: &str,
        fenced: &mut Vec<GuardedRelation>,
    ) -> Result<(), GuardError> {
        let database = self.database.clone();
        self.wanted_leases = policies.resources.iter().filter_map(|it| guarded_lease(it)).collect();
        let foreign_tables_truncate = version.parse().is_ok_and(|version: u32| version >= 160_000);
        for resource in &policies.resources {
            for table in &resource.tables {
                let relations = self.relations(client, &database, resource, table).await?;
                let roles = &policies.exempt_roles;
                self.wanted.extend(wanted(resource, table, &relations, roles, foreign_tables_truncate));
                fenced.extend(relations);
            }
        }
        Ok(())
    }

    /// The fenced table and all tables that inherit from it. Records those that cannot be guarded.
    async fn relations(
        &mut self,
        client: &Client,
        database: &str,
        resource: &Resource,
        table: &FencedTable,
    ) -> Result<Vec<GuardedRelation>, GuardError> {
        if table.operations.iter().all(|operation| *operation == Operation::Ddl) {
            return Ok(Vec::new());
        }
        let (name, resource) = (&table.name, &resource.name);
        let rows = rows(client, "read the catalog", &tree(table)).await?;
        if rows.is_empty() && table.is_expected_in(database) {
            self.missing.push(name.clone());
            self.unguarded.push(format!(
                "table {name} of resource {resource} does not exist: run `fencegate guard install` again when it does"
            ));
        }
        let mut relations = Vec::new();
        for row in &rows {
            let relation = relation(row);
            match relation.kind {
                'r' | 'p' | 'f' => relations.push(relation),
                _ => self.unguarded.push(format!(
                    "{name} of resource {resource} is not a table: to guard the tables behind it, name them in a policy"
                )),
            }
        }
        Ok(relations)
    }

    /// The statements that create the functions with the schema's owner.
    pub(super) fn definition(&self) -> String {
        let owned = |signature: &&str| format!("ALTER FUNCTION {signature} OWNER TO {};", self.owner);
        let owned: String = CHECK_SIGNATURES.iter().chain(&SIGNATURES).map(owned).collect();
        format!("{FUNCTIONS}; {owned}")
    }

    pub(super) fn leases(&self) -> GuardState {
        match &self.found_leases {
            found if *found == self.wanted_leases => GuardState::Ok,
            found if found.is_empty() => GuardState::Missing,
            _ => GuardState::Changed,
        }
    }

    /// The statements that record the policies' leases.
    pub(super) fn leases_definition(&self) -> String {
        let row = |(resource, lease): (&String, &String)| {
            format!(
                "INSERT INTO fencegate_state.leased (resource, lease) VALUES ({}, {});",
                quote(resource),
                quote(lease)
            )
        };
        format!("DELETE FROM fencegate_state.leased; {}", self.wanted_leases.iter().map(row).collect::<String>())
    }

    /// Number of required triggers, number of those that exist as required, and number of relations that require
    /// triggers.
    pub(super) fn size(&self) -> (usize, usize, usize) {
        let relations: BTreeSet<&str> = self.wanted.iter().map(|wanted| wanted.relation.as_str()).collect();
        let there = self.wanted.iter().filter(|wanted| self.difference(wanted).is_none());
        (self.wanted.len(), there.count(), relations.len())
    }

    /// Statements that other roles have to run because the connecting role may not: a transaction for each relation, which
    /// may have an owner of its own.
    pub(super) fn rest(&self) -> Vec<RemainingStatements> {
        let mut relations: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for Difference { relation, statements, .. } in self.differences().filter(|it| !it.may_alter) {
            relations.entry(relation).or_default().extend(statements);
        }
        let to_run = relations.into_iter().filter(|(_, statements)| !statements.is_empty());
        let by_owner = |(relation, statements)| RemainingStatements {
            by: format!("the owner of {relation}, or a superuser"),
            statements,
        };
        let mut rest: Vec<RemainingStatements> = to_run.map(by_owner).collect();
        if !self.leases().is_well() {
            rest.push(RemainingStatements { by: self.owner.clone(), statements: vec![self.leases_definition()] });
        }
        if !self.event_triggers.is_well() {
            rest.push(RemainingStatements { by: "a superuser".to_owned(), statements: vec![event_triggers()] });
        }
        rest
    }

    /// The differences, triggers that no policy requires first.
    pub(super) fn differences(&self) -> impl Iterator<Item = Difference> {
        let unwanted = self.unwanted().map(|(place, found)| superfluous(place, found));
        let wanted = self.wanted.iter().filter_map(|wanted| self.difference(wanted));
        unwanted.chain(wanted).collect::<Vec<_>>().into_iter()
    }

    pub(super) fn lines(&self) -> Vec<StatusLine> {
        let mut parts: BTreeMap<(&str, &str), Vec<Difference>> = BTreeMap::new();
        for wanted in &self.wanted {
            let part = parts.entry((&wanted.relation, &wanted.resource)).or_default();
            part.extend(self.difference(wanted));
        }
        for (place, found) in self.unwanted() {
            parts.entry((&place.0, "")).or_default().push(superfluous(place, found));
        }
        let line = |((table, resource), differences): ((&str, &str), Vec<Difference>)| {
            let rank = |state: GuardState| {
                [GuardState::Ok, GuardState::Disabled, GuardState::Changed, GuardState::Missing]
                    .iter()
                    .position(|it| *it == state)
            };
            let state =
                differences.iter().map(|it| it.state).max_by_key(|state| rank(*state)).unwrap_or(GuardState::Ok);
            let what: Vec<&str> = differences.iter().map(|it| it.what.as_str()).collect();
            StatusLine { table: table.to_owned(), resource: resource.to_owned(), state, difference: what.join("; ") }
        };
        let mut lines: Vec<StatusLine> = parts.into_iter().map(line).collect();
        let mut other = |table: &str, state: GuardState, difference: &str| {
            let difference = if state == GuardState::Ok { "" } else { difference };
            let (table, difference) = (table.to_owned(), difference.to_owned());
            lines.push(StatusLine { table, resource: String::new(), state, difference });
        };
        let functions = match self.functions {
            GuardState::Disabled => "PUBLIC lacks USAGE on the schema, or EXECUTE on the functions",
            _ => "differ from this version's, or are not owned by the owner of the schema",
        };
        other("(functions)", self.functions, functions);
        if !self.wanted_leases.is_empty() || !self.found_leases.is_empty() {
            other("(leases)", self.leases(), "differ from the policies");
        }
        other("(event triggers)", self.event_triggers, NO_EVENT_TRIGGERS);
        for Subscription { name, owner, is_rejected } in &self.subscriptions {
            let state = if *is_rejected { GuardState::Rejected } else { GuardState::Ok };
            let difference = format!("its owner {owner} is not exempt and has no token, so no row is applied");
            other(&format!("(subscription {name})"), state, &difference);
        }
        lines
    }

    /// The relations that have a guard but require none.
    pub(super) fn released(&self) -> BTreeSet<String> {
        let wanted: BTreeSet<&str> = self.wanted.iter().map(|wanted| wanted.relation.as_str()).collect();
        let relations = self.unwanted().map(|((relation, _), _)| relation);
        relations.filter(|relation| !wanted.contains(relation.as_str())).cloned().collect()
    }

    /// Omits copies, which are dropped with their original.
    fn unwanted(&self) -> impl Iterator<Item = (&TriggerName, &InstalledTrigger)> {
        let wanted: BTreeSet<(&str, &str)> =
            self.wanted.iter().map(|wanted| (wanted.relation.as_str(), wanted.name.as_str())).collect();
        let is_wanted = move |place: &TriggerName| wanted.contains(&(place.0.as_str(), place.1.as_str()));
        self.found.iter().filter(move |(place, found)| !found.is_copy && !is_wanted(place))
    }

    fn difference(&self, wanted: &WantedTrigger) -> Option<Difference> {
        let WantedTrigger { relation, name, fires, .. } = wanted;
        let enable = format!("ALTER TABLE {relation} ENABLE {} TRIGGER {name}", fires.keyword());
        let drop = format!("DROP TRIGGER {name} ON {relation}");
        let (state, what, statements) = match (self.found.get(&(relation.clone(), name.clone())), &wanted.definition) {
            (None, definition) => {
                let create = definition.iter().cloned().chain([enable]).collect();
                (GuardState::Missing, format!("no {name}"), if definition.is_some() { create } else { Vec::new() })
            }
            (Some(found), Some(definition)) if found.definition != *definition => {
                let what = format!("{name} has {}", in_place_of(&found.definition, definition));
                (GuardState::Changed, what, vec![drop, definition.clone(), enable])
            }
            (Some(found), _) if found.enabled != fires.letter() => {
                let (state, word) = match found.enabled {
                    'A' => (GuardState::Changed, "enabled for all"),
                    'D' => (GuardState::Disabled, "disabled"),
                    'R' => (GuardState::Disabled, "enabled for replicas only"),
                    _ => (GuardState::Disabled, "not enabled for replicas"),
                };
                (state, format!("{name} is {word}"), vec![enable])
            }
            _ => return None,
        };
        Some(Difference { state, what, relation: relation.clone(), may_alter: wanted.may_alter, statements })
    }
}

fn superfluous(place: &TriggerName, found: &InstalledTrigger) -> Difference {
    let (relation, name) = place;
    Difference {
        state: GuardState::Changed,
        what: format!("no policy requires {name}"),
        relation: relation.clone(),
        may_alter: found.may_alter,
        statements: vec![format!("DROP TRIGGER {name} ON {relation}")],
    }
}

/// The differing words of two definitions: `A in place of B`.
fn in_place_of(found: &str, wanted: &str) -> String {
    let [mut found, mut wanted] = [found, wanted].map(|text| text.split(' ').collect::<VecDeque<&str>>());
    while found.len().min(wanted.len()) > 1 && found.front() == wanted.front() {
        found.pop_front();
        wanted.pop_front();
    }
    while found.len().min(wanted.len()) > 1 && found.back() == wanted.back() {
        found.pop_back();
        wanted.pop_back();
    }
    let [found, wanted] = [found, wanted].map(|words| Vec::from(words).join(" "));
    format!("{found} instead of {wanted}")
}
