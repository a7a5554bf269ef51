//! The changes that a session's open transaction has made in the catalog, and whether they leave it in doubt which
//! relations lead to fenced tables. They count for other sessions, too: a write that waits for the lock of a definition
//! was judged before the commit and runs after it, and the proxy may see a commit late.

use super::affected::affected_resources;
use super::host::Host;
use super::pending_definitions::{CatalogView, PendingDefinitions};
use fencegate_policy::PolicySet;
use fencegate_statement::Statement;

/// Definitions of one session that the server may still commit.
#[derive(Debug, Default)]
pub struct Definitions {
    own: PendingDefinitions,
    extent: Extent,
    /// The host's count of doubts when the first definition was forwarded.
    since: u64,
    /// A definition may hide the catalog's own operators or types in key comparisons.
    shadow_keys: bool,
}

/// How far a session's definitions may reach. Each level includes the ones below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    #[default]
    Nothing,
    /// The definition names everything that it changes, and none of it concerns fenced tables.
    Harmless,
    /// The definition may change relations that it does not name. It counts only once it is done: a role that may run
    /// it could also take the next step there.
    Unnamed,
    /// Others were defining objects that may concern fenced tables. This definition may build on theirs, and counts for
    /// other sessions.
    BesideOthers,
    /// A definition names a fenced table or a path to one, or the paths were unknown: until the transaction ends, the
    /// catalog may lack paths to fenced tables.
    Fences,
}

impl Definitions {
    /// Relations that these definitions may have turned into ways to fenced tables.
    pub fn own(&self) -> &PendingDefinitions {
        &self.own
    }

    /// True if definitions were forwarded and their result is unknown.
    pub fn are_under_way(&self) -> bool {
        self.extent > Extent::Nothing
    }

    /// Records a statement that is about to be forwarded, after its verdict on `seen`: see
    /// [`PendingDefinitions::note`].
    pub fn note(&mut self, statement: &Statement, seen: &CatalogView, host: &impl Host) {
        if !statement.changes_catalog {
            return;
        }
        let (policies, others) = (host.policies(), host.definitions_of_others());
        let shadows = policies.has_keys() && statement.may_shadow_key_types();
        let are_more = self.own.note(statement, policies, seen, &others);
        let extent = if !seen.is_current || shadows || are_more || names_fences(statement, policies, seen) {
            Extent::Fences
        } else if !others.is_empty() {
            Extent::BesideOthers
        } else if statement.changes_unnamed || seen.catalog.has_event_triggers() || policies.has_functions() {
            // The statement does not name the functions that it calls either.
            Extent::Unnamed
        } else {
            Extent::Harmless
        };
        if self.extent == Extent::Nothing {
            self.since = seen.doubts;
        }
        let was_published = self.count_for_others();
        self.extent = self.extent.max(extent);
        self.shadow_keys |= shadows;
        if are_more || self.count_for_others() != was_published {
            host.publish_definitions(&self.own.for_others());
        }
    }

    /// Returns true if the catalog may lack paths to fenced tables until the transaction ends.
    pub fn concern_fences(&self) -> bool {
        self.extent == Extent::Fences
    }

    /// Returns true if, within this transaction, the text does not show which operators and types a key comparison
    /// uses.
    pub fn shadow_keys(&self) -> bool {
        self.shadow_keys
    }

    /// Returns true if the definitions count for other sessions.
    fn count_for_others(&self) -> bool {
        self.extent >= Extent::BesideOthers
    }

    /// Called before a transaction with definitions is withdrawn. Returns true if they cannot concern fenced tables,
    /// neither alone nor with definitions that others have made since or are making.
    pub fn pass_as_harmless(&self, host: &impl Host) -> bool {
        // The order matters: a session notes a doubt before it withdraws its definitions.
        self.extent == Extent::Harmless
            && host.definitions_of_others().is_empty()
            && host.note_harmless_change(self.since)
    }

    /// Withdraws the definitions of an ended transaction, after the catalog was forgotten if necessary.
    pub fn withdraw(&mut self, host: &impl Host) {
        if self.count_for_others() {
            host.withdraw_definitions();
        }
        *self = Definitions::default();
    }
}

/// True if the statement names a fenced table or a path to one. Redirections are checked separately.
fn names_fences(statement: &Statement, policies: &PolicySet, seen: &CatalogView) -> bool {
    let written = statement.writes.iter().map(|write| &write.relation);
    let redirected = statement.redirects.iter().map(|redirect| &redirect.relation);
    written.chain(redirected).chain(&statement.defines).any(|relation| seen.concerns_fences(relation, policies))
        || !affected_resources(statement, policies, seen).is_empty()
}
