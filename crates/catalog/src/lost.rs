//! Fences that new policies would silently remove: the resource remains, but none of its tables exists.
//!
//! Owns that rule. Must never accept new policies if a relevant database could not be read.

use super::names::{NamesFound, missing_text};
use fencegate_policy::nearest::{advice, nearest};
use fencegate_policy::{PolicySet, QualifiedName, Resource};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Names of the policies in a database, as far as known.
#[derive(Debug)]
pub enum DatabaseNames {
    /// The names that the database has.
    Found(NamesFound),
    /// The server has no such database.
    NoDatabase,
    /// Why the database could not be read.
    Unread(String),
}

/// A resource whose fence the new policies would remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFence {
    /// The resource's name.
    pub resource: String,
    /// The table whose name is probably wrong, for its position in the file.
    pub table: Option<QualifiedName>,
    /// The error.
    pub reason: String,
}

/// The resources that remain but lose a table or a database, each before and after the change. Only these can lose a
/// fence: if there are none, no database need be read.
pub fn fences_at_risk(old: &PolicySet, new: &PolicySet) -> Vec<(Arc<Resource>, Arc<Resource>)> {
    let is_narrower = match (&old.databases, &new.databases) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(old), Some(new)) => old.iter().any(|database| !new.contains(database)),
    };
    let pairs = new.resources.iter().filter_map(|new| {
        let old = old.resources.iter().find(|old| old.family_name() == new.family_name())?;
        let loses_table = old.tables.iter().any(|table| !names(new, &table.name));
        let loses_function = old.tables.is_empty() && old.functions.iter().any(|it| !new.functions.contains(it));
        (is_narrower || loses_table || loses_function).then(|| (old.clone(), new.clone()))
    });
    pairs.collect()
}

/// Fences that `new` removes from resources that it keeps, given the databases' tables. `had_table`: resources, by
/// [`Resource::family_name`], that once had a table.
pub fn lost_fences(
    old: &PolicySet,
    new: &PolicySet,
    databases: &BTreeMap<String, DatabaseNames>,
    had_table: &HashSet<String>,
) -> Vec<LostFence> {
    let at_risk = fences_at_risk(old, new);
    let rule = Rule { old, new, databases, had_table };
    at_risk.iter().filter_map(|(before, after)| rule.lost(before, after)).collect()
}

/// The databases with a table of policies that name no databases. All of these databases are fenced.
pub fn with_tables(policies: &PolicySet, databases: &BTreeMap<String, DatabaseNames>) -> Vec<String> {
    if policies.databases.is_some() {
        return Vec::new();
    }
    let has = |names: &DatabaseNames| matches!(names, DatabaseNames::Found(found) if found.has_tables());
    databases.iter().filter(|(_, names)| has(names)).map(|(database, _)| database.clone()).collect()
}

struct Rule<'a> {
    old: &'a PolicySet,
    new: &'a PolicySet,
    databases: &'a BTreeMap<String, DatabaseNames>,
    had_table: &'a HashSet<String>,
}

impl Rule<'_> {
    fn lost(&self, before: &Resource, after: &Resource) -> Option<LostFence> {
        let lost = |(table, reason)| LostFence { resource: after.name.clone(), table, reason };
        let (mut had_some, mut has_some) = (self.had_table.contains(&after.family_name()), false);
        let (mut wrong, mut unread) = (None, None);
        for (database, names) in self.databases {
            let (was_for, is_for) = (self.old.applies_to(database), self.new.applies_to(database));
            let found = match names {
                DatabaseNames::Found(found) => found,
                DatabaseNames::NoDatabase => continue,
                DatabaseNames::Unread(reason) => {
                    let reason =
                        format!("cannot determine whether {} keeps a table in {database}: {reason}", after.name);
                    unread = unread.or((was_for || is_for).then_some((None, reason)));
                    continue;
                }
            };
            let (had, has) = (was_for && found.has_some_of(before), is_for && found.has_some_of(after));
            had_some |= had;
            has_some |= has;
            if had && !has && wrong.is_none() {
                wrong = match is_for {
                    true => self.new_name(before, after, database, found),
                    false => self.new_database(),
                };
            }
        }
        if had_some && !has_some && wrong.is_none() && unread.is_none() {
            wrong = Some(self.no_table(after));
        }
        wrong.or(unread).map(lost)
    }

    /// A new name of the resource that does not exist in the database.
    fn new_name(
        &self,
        before: &Resource,
        after: &Resource,
        database: &str,
        found: &NamesFound,
    ) -> Option<(Option<QualifiedName>, String)> {
        let is_new = |name: &QualifiedName| !names(before, name) && !found.has_table(name);
        let mut tables = after.tables.iter().filter(|it| it.is_expected_in(database) && is_new(&it.name));
        if let Some(table) = tables.next() {
            let text = missing_text(&table.name.to_string(), database, found.nearest(&table.name));
            return Some((Some(table.name.clone()), text));
        }
        let mut functions =
            after.functions.iter().filter(|it| after.tables.is_empty() && !before.functions.contains(it));
        let function = functions.find(|it| !found.has_function(it))?;
        Some((None, missing_text(&format!("function {function}"), database, None)))
    }

    /// A new name in `databases` that does not exist.
    fn new_database(&self) -> Option<(Option<QualifiedName>, String)> {
        let named = |set: &PolicySet, name: &String| set.databases.as_ref().is_some_and(|all| all.contains(name));
        let is_wrong = |(name, names): &(&String, &DatabaseNames)| {
            matches!(names, DatabaseNames::NoDatabase) && named(self.new, name) && !named(self.old, name)
        };
        let (name, _) = self.databases.iter().find(is_wrong)?;
        let existing = self.databases.iter().filter(|(_, names)| !matches!(names, DatabaseNames::NoDatabase));
        let nearest = nearest(name, existing.map(|(database, _)| database.as_str()));
        Some((None, format!("database {name} does not exist{}", advice(nearest))))
    }

    /// None of the resource's tables exists anywhere.
    fn no_table(&self, after: &Resource) -> (Option<QualifiedName>, String) {
        for (database, names) in self.databases.iter().filter(|(database, _)| self.new.applies_to(database)) {
            let DatabaseNames::Found(found) = names else { continue };
            if let Some(table) = after.tables.iter().find(|table| table.is_expected_in(database)) {
                let text = missing_text(&table.name.to_string(), database, found.nearest(&table.name));
                return (Some(table.name.clone()), text);
            }
        }
        (None, "none of its tables or functions exists in a database of the policies".to_owned())
    }
}

fn names(resource: &Resource, table: &QualifiedName) -> bool {
    resource.tables.iter().any(|it| it.name == *table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencegate_policy::join;

    fn set(text: &str) -> PolicySet {
        join([("policies.yaml".into(), Ok(format!("version: 1\n{text}").into_bytes()))]).unwrap()
    }

    /// The lost fences if the policies change, on a server with these databases and tables.
    fn lost(old: &str, new: &str, server: &[(&str, &[&str])]) -> Vec<String> {
        lost_with(old, new, server, &[])
    }

    fn lost_with(old: &str, new: &str, server: &[(&str, &[&str])], had_table: &[&str]) -> Vec<String> {
        let (old, new) = (set(old), set(new));
        let named = old.databases.iter().chain(&new.databases).flatten();
        let missing = named.map(|name| (name.clone(), DatabaseNames::NoDatabase));
        let found = |(database, tables): &(&str, &[&str])| {
            let names = match tables {
                ["?"] => DatabaseNames::Unread("no answer".to_owned()),
                tables => DatabaseNames::Found(NamesFound::of(&[&old, &new], tables)),
            };
            ((*database).to_owned(), names)
        };
        let databases = missing.chain(server.iter().map(found)).collect();
        let had_table = had_table.iter().map(|it| (*it).to_owned()).collect();
        lost_fences(&old, &new, &databases, &had_table).into_iter().map(|it| it.reason).collect()
    }

    #[test]
    fn a_misspelled_name_is_reported_with_the_nearest_one() {
        let ticks = "resources: [{name: r, tables: [public.ticks]}]";
        let tikcs = "resources: [{name: r, tables: [public.tikcs]}]";
        let app: &[(&str, &[&str])] = &[("app", &["public.ticks"])];
        assert_eq!(lost(ticks, tikcs, app), ["public.tikcs does not exist in app; did you mean public.ticks?"]);
        assert_eq!(lost(ticks, ticks, app), [""; 0]);
        // The table did not exist before the change either.
        assert_eq!(lost(tikcs, tikcs, app), [""; 0]);
        assert_eq!(lost(tikcs, ticks, app), [""; 0]);
        assert_eq!(lost("resources: []", tikcs, app), [""; 0]);
        // Removed on purpose.
        assert_eq!(lost(ticks, "resources: []", app), [""; 0]);
        assert_eq!(lost(ticks, "resources: [{name: other, tables: [public.ticks]}]", app), [""; 0]);
        // Renamed in the database earlier. The policies now have a wrong name.
        let renamed: &[(&str, &[&str])] = &[("app", &["public.ticks_2"])];
        assert_eq!(lost(ticks, tikcs, renamed), [""; 0]);
        assert_eq!(lost_with(ticks, tikcs, renamed, &["r"]), ["public.tikcs does not exist in app"]);
        assert_eq!(lost_with(ticks, "resources: [{name: r, tables: [public.ticks_2]}]", renamed, &["r"]), [""; 0]);
    }

    #[test]
    fn one_existing_table_keeps_a_resource_fenced() {
        let both = "resources: [{name: r, tables: [public.a, public.b]}]";
        let wrong = "resources: [{name: r, tables: [public.a, public.bb]}]";
        assert_eq!(lost(both, wrong, &[("app", &["public.a", "public.b"])]), [""; 0]);
        assert_eq!(
            lost(both, wrong, &[("app", &["public.b"])]),
            ["public.bb does not exist in app; did you mean public.b?"]
        );
        let less = "resources: [{name: r, tables: [public.a]}]";
        assert_eq!(
            lost(both, less, &[("app", &["public.b"])]),
            ["public.a does not exist in app; did you mean public.b?"]
        );
    }

    #[test]
    fn each_database_keeps_its_fence() {
        let both = "resources: [{name: r, tables: [public.ticks, public.orders]}]";
        let server: &[(&str, &[&str])] = &[("app", &["public.ticks"]), ("shop", &["public.orders"])];
        let wrong = "resources: [{name: r, tables: [public.ticks, public.ordres]}]";
        assert_eq!(lost(both, wrong, server), ["public.ordres does not exist in shop; did you mean public.orders?"]);
        let elsewhere = "resources: [{name: r, tables: [public.ticks, {name: public.ordres, database: app}]}]";
        assert_eq!(lost(both, elsewhere, server), [""; 0]);
        // Removed on purpose.
        assert_eq!(lost(both, "resources: [{name: r, tables: [public.ticks]}]", server), [""; 0]);
        let moved: &[(&str, &[&str])] = &[("app", &["public.ticks", "public.t2"]), ("shop", &["public.ticks"])];
        let [old, new] = ["public.ticks", "public.t2"].map(|it| format!("resources: [{{name: r, tables: [{it}]}}]"));
        assert_eq!(lost(&old, &new, moved), ["public.t2 does not exist in shop"]);
    }

    #[test]
    fn a_wrong_database_name_is_reported_if_it_removes_a_fence() {
        let of = |databases: &str| format!("resources: [{{name: r, tables: [public.t]}}]\n{databases}");
        let server: &[(&str, &[&str])] = &[("app", &["public.t"]), ("shop", &["public.t"]), ("empty", &[])];
        let wrong = lost(&of("databases: [app]"), &of("databases: [ap]"), server);
        assert_eq!(wrong, ["database ap does not exist; did you mean app?"]);
        let wrong = lost(&of("databases: [app, shop]"), &of("databases: [app, shpo]"), server);
        assert_eq!(wrong, ["database shpo does not exist; did you mean shop?"]);
        assert_eq!(lost(&of(""), &of("databases: [shpo]"), server), wrong, "not the first that loses the fence");
        assert_eq!(lost(&of("databases: [app, shop]"), &of("databases: [app]"), server), [""; 0]);
        assert_eq!(lost(&of(""), &of("databases: [shop]"), server), [""; 0]);
        assert_eq!(lost(&of(""), &of("databases: [empty]"), server), ["public.t does not exist in empty"]);
        assert_eq!(lost(&of("databases: [empty]"), &of(""), server), [""; 0]);
    }

    #[test]
    fn an_unreadable_database_is_reported_only_if_it_matters() {
        let of = |table: &str| format!("resources: [{{name: r, tables: [{table}]}}]\ndatabases: [app, shop]");
        let server: &[(&str, &[&str])] = &[("app", &["public.t"]), ("shop", &["?"]), ("other", &["?"])];
        let unknown = ["cannot determine whether r keeps a table in shop: no answer"];
        assert_eq!(
            lost(&of("public.t"), &of("public.u"), server),
            ["public.u does not exist in app; did you mean public.t?"]
        );
        assert_eq!(lost(&of("public.t, public.u"), &of("public.t"), server), unknown);
        assert_eq!(lost(&of("public.t"), &of("public.t, public.u"), server), [""; 0]);
    }

    #[test]
    fn keyed_resources_and_functions_are_checked_too() {
        let keyed =
            |name: &str, table: &str| format!("resources: [{{name: '{name}', tables: [{{name: {table}, key: k}}]}}]");
        let app: &[(&str, &[&str])] = &[("app", &["public.shards", "public.run()"])];
        let wrong = lost(&keyed("s/{a}", "public.shards"), &keyed("s/{b}", "public.shard"), app);
        assert_eq!(wrong, ["public.shard does not exist in app; did you mean public.shards?"]);
        let function = |name: &str| format!("resources: [{{name: r, functions: [{name}]}}]");
        let wrong = lost(&function("public.run"), &function("public.runn"), app);
        assert_eq!(wrong, ["function public.runn does not exist in app"]);
        assert_eq!(lost(&function("public.run"), &function("public.ru*"), app), [""; 0]);
    }
}
