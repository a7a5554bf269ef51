//! The proxy, as one of its sessions sees it.

use super::context::Context;
use super::sessions::SessionRecord;
use crate::fence::Claim;
use crate::fence::session::{Epoch, Token};
use crate::policy::{PolicySet, Resource};
use crate::session::Host;
use crate::session::Task;
use crate::session::host::{Changes, Seen, Wanted};
use crate::session::judge::PassedWrite;
use crate::session::parameter::ParameterValue;
use crate::session::rejection::Rejection;
use crate::session::suspects::Suspects;
use crate::session::task::{Room, Turn};
use crate::statement::{Analysis, Lexing, Statement};
use std::sync::Arc;

/// What a session is told, and what it tells.
pub struct SessionHost {
    pub context: Context,
    pub record: Arc<SessionRecord>,
}

impl Host for SessionHost {
    fn take_up_policies(&mut self) -> bool {
        self.context.changed()
    }

    fn is_fenced(&self) -> bool {
        self.context.is_fenced()
    }

    fn policies(&self) -> &PolicySet {
        self.context.policies()
    }

    fn database(&self) -> &str {
        self.context.database().name()
    }

    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        self.context.database().known_stale(resource, token)
    }

    fn release(&self) {
        let (database, fence) = (self.context.database().clone(), self.record.fence.clone());
        tokio::spawn(async move { database.release(&fence).await });
    }

    fn catalogue(&self, wanted: Option<&Wanted>) -> Seen {
        self.context.shared_database().catalogue(wanted)
    }

    fn changes(&self) -> Changes {
        self.context.shared_database().changes()
    }

    fn is_unread(&self, wanted: &Wanted) -> bool {
        self.context.shared_database().is_unread(wanted)
    }

    fn forget_catalogue(&self) {
        self.context.shared_database().forget_catalogue();
    }

    fn catalogue_changed(&self) {
        self.context.catalogue_changed();
    }

    fn note_harmless_change(&self, doubts: u64) -> bool {
        self.context.shared_database().note_harmless_change(doubts)
    }

    fn forget_database(&self, name: &str) {
        self.context.shared().forget_database(name);
    }

    fn suspects_of_others(&self) -> Vec<Arc<Suspects>> {
        self.context.shared_database().suspects.except(self.record.number)
    }

    fn publish_suspects(&self, suspects: &Suspects) {
        self.context.shared_database().suspects.publish(self.record.number, suspects);
    }

    fn withdraw_suspects(&self) {
        let database = self.context.shared_database();
        database.suspects.withdraw(self.record.number, database.changes().doubts);
    }

    fn read(&self, text: &[u8], lexing: Lexing, with_rows: bool, turn: Option<Turn>) -> Result<Analysis, Task> {
        self.context.read(text, lexing, with_rows, turn)
    }

    fn room(&self, bytes: usize, there: usize, behind: bool) -> Option<Room> {
        self.context.rooms(behind).try_take(bytes, there).map(|room| Box::new(room) as Room)
    }

    fn at_length<R>(work: impl FnOnce() -> R) -> R {
        tokio::task::block_in_place(work)
    }

    fn note_query(&self) {
        self.record.passed.query(self.context.metrics());
    }

    fn note_presented(&self, value: &ParameterValue) {
        self.record.present(value);
    }

    fn note_admitted(&mut self, resource: &Resource) {
        self.context.admitted(resource);
    }

    fn note_rejected(&self, rejection: &Rejection, statement: &Statement) {
        self.record.log_rejection(&self.context, rejection, statement);
    }

    fn note_passed(&self, passed: Vec<PassedWrite>) {
        self.context.passed(passed);
    }

    fn observe(&self, resource: Arc<Resource>, token: Token, claim: Claim) {
        self.context.observe(resource, token, claim);
    }
}
